"""The store: all bundles, and the activations that say which version replicas must serve.

    store/   bundles/<version>/        a published bundle; its manifest is written last
             activations/00000042.json the highest number is current; see `activations.py`
             memory/                   the log of the live memory
             replicas/                 reports of the replicas, in a store in a folder

A bundle without its manifest does not exist: it is being written, copied or removed. Nothing takes a lock, so several
hosts may use one store.

An activation and a removal of the same version at the same time are safe by their order. A removal deletes the
manifest, then reads the activations, and writes the manifest again if the version is used. An activation creates its
file, then reads the manifest; if it is gone, the next activation makes the previous version current again.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from recollect.core.bundle.bundle import Bundle, open_bundle
from recollect.core.bundle.files import MANIFEST, SIGNATURE
from recollect.core.bundle.integrity import SignedManifest, check_manifest, check_sizes, read_signed_manifest
from recollect.core.bundle.manifest import Engine, FileInfo, Manifest, check_version, is_version
from recollect.core.bundle.signing import VerifyKeys, read_verify_keys
from recollect.core.errors import (
    ActivationConflictError,
    ActivationRefusedError,
    BundleError,
    StoreError,
    UnknownVersionError,
)
from recollect.core.system.reloaded_file import ReloadedFile
from recollect.store.activations import ActivationRecord, Activations
from recollect.store.bundle_cache import BundleCache
from recollect.store.files import INCOMING, MAX_WRITE_AGE, FolderFiles, remove_abandoned_files
from recollect.store.object_folder import ObjectFolder, StoreFiles


class Store:
    """A store in a folder or at a URL.

    A bundle of a store at a URL is opened from the bundle cache of this machine. With a file of public keys, every
    bundle must be signed by one of the matching private keys, and is opened from the cache, too: a copy there cannot
    change after its check. Otherwise a bundle in a folder is opened in place.

    A method raises a StoreError if the store or a version in it is missing, or the store cannot be read or written. It
    raises a BundleError if the manifest of a version is damaged, not signed, or that of another version.

    Attributes:
        root: The folder on this machine: the store's folder, or its folder in the bundle cache.
        bundles: The folder inside `root` that contains one folder for each version.

    Args:
        location: The folder, or a URL such as `s3://bucket/store`. The URL `file:///folder` means a folder.
        verify_key: File with the public keys; None if bundles need no signature.
        cache: Folder of the bundle cache; None means the user's cache folder.

    Raises:
        KeyFileError: If `verify_key` is not a file of Ed25519 public keys.
        StoreError: If the URL's scheme is unknown, no folder for the cache can be found, or other users can write to
            the cache.
    """

    def __init__(self, location: Path | str, verify_key: Path | None = None, cache: Path | None = None) -> None:
        if isinstance(location, str) and location.startswith("file://"):
            location = unquote(urlsplit(location).path)
        self.is_local = "://" not in str(location)
        self.files: StoreFiles = FolderFiles(Path(location)) if self.is_local else ObjectFolder(str(location))
        self.name = self.files.name
        self.verify_keys = ReloadedFile(verify_key, read_verify_keys) if verify_key is not None else None
        self._activations, self._cache = Activations(self.files), None
        if self.verify_keys or not self.is_local:
            name = str(Path(location).resolve()) if self.is_local else self.name
            self._cache = BundleCache(self, name, cache)
        if self._cache is None or self.is_local:
            self.root = Path(location)
        else:
            self._cache.prepare()
            self.root = self._cache.root
        self.bundles = self.root / "bundles"

    def require(self) -> None:
        """Check that the store exists."""
        if not (self.files.names("") if self.files.can_list else self.activation()):
            raise StoreError(f"{self.name}: expected a bundle store, found none; run `recollect build`")

    def versions(self) -> list[str]:
        """All published versions, oldest first."""
        return [name for name in self.files.names("bundles") if is_version(name) and self._is_published(name)]

    def activation(self) -> ActivationRecord | None:
        """The current activation record; None if no version is current. A damaged or missing record is a StoreError."""
        return self._activations.current()

    def current(self) -> str | None:
        """The version that replicas must serve; None if no version is current."""
        record = self.activation()
        return record.version if record else None

    def log(self) -> list[ActivationRecord]:
        """All activations and rollbacks, oldest first."""
        return self._activations.all()

    def require_current(self) -> str:
        """The version that replicas serve. Without one, this is a StoreError."""
        current = self.current()
        if current is None:
            self.require()
            known = self._latest()
            if not known and (Path(self.name) / "training.json").is_file():
                raise StoreError(f"{self.name}: expected a store, found a run folder; name the folder after --store")
            next_step = f"`recollect activate` one of: {known}" if known else "it has no version: run `recollect build`"
            raise StoreError(f"{self.name}: no version is current; {next_step}")
        return current

    def resolve(self, version: str) -> str:
        """Return `version`; for the word `current`, return the name of the current version."""
        return self.require_current() if version == "current" else version

    def signed_manifest(self, version: str) -> SignedManifest:
        """The manifest of a published version, with its bytes."""
        folder = f"bundles/{check_version(version)}"
        content = self.files.read(f"{folder}/{MANIFEST}")
        if content is None:
            raise self._no_version(version)
        signature = self.files.read(f"{folder}/{SIGNATURE}") if self.verify_keys else None
        signed = check_manifest(content, signature, self._keys(), f"{self.name}/{folder}")
        _require_version(signed.manifest, version, f"{self.name}/{folder}")
        return signed

    def manifest(self, version: str) -> Manifest:
        return self.signed_manifest(version).manifest

    def open(self, version: str, pause: Callable[[], None] | None = None, share_with: Sequence[Bundle] = ()) -> Bundle:
        """Check the files of a published version, then map them into memory.

        Args:
            pause: Called between the steps, so that a caller can slow them down, or end them with an error.
            share_with: Other open bundles of this store; see `open_bundle`.
        """
        manifest = self.manifest(version)
        if self._cache is None:
            return self.open_folder(self.bundles / version, version, pause, share_with)
        if self.is_local:
            check_sizes(self.bundles / version, manifest)  # a bundle with a missing file is refused before it is copied
        return self._cache.open(version, pause, share_with)

    def open_folder(
        self, folder: Path, version: str, pause: Callable[[], None] | None, share_with: Sequence[Bundle]
    ) -> Bundle:
        """Check the files of a version in a folder on this machine, then map them into memory; see `open`."""
        bundle = open_bundle(folder, self._keys(), pause, share_with)
        _require_version(bundle.manifest, version, str(folder))
        return bundle

    def accepts(self, bundle: Bundle) -> bool:
        """Whether an open bundle is still the published one, and one of the present public keys accepts its signature.

        Another process may have replaced the folder by another bundle with the same name.
        """
        try:
            return read_signed_manifest(bundle.folder, self._keys()).manifest == bundle.manifest
        except BundleError:
            return False

    def activate(
        self,
        version: str,
        candidate: bool = False,
        by: str | None = None,
        why: str = "",
        expected_generation: int | None = None,
    ) -> ActivationRecord:
        """Make a version current, or the candidate, which replicas open beside it; return the new record.

        It replaces another candidate. An activation of the version that is already current also gets a new generation:
        replicas that refused the version then try it again at once.

        Args:
            by: The user who activates the version; None means the user of this process.
            why: The reason, for the log.
            expected_generation: Generation that the store must have before the activation; None accepts any.

        Raises:
            ActivationConflictError: If the store has another generation than expected, or another process changes the
                current version at the same time.
            ActivationRefusedError: If the candidate is already current, or no version is current.
        """
        self.manifest(version)
        before = self.activation()
        generation = before.generation if before else 0
        if expected_generation not in (None, generation):
            raise ActivationConflictError(
                f"{self.name}: expected generation {expected_generation}, found {generation}; see `recollect log`"
            )
        previous = before.previous if before else ()
        if not candidate:
            if before is not None and before.version != version:
                previous = (*previous, before.version)
            record = self._activations.append(before, "activate", version, previous, None, by, why)
        elif before is not None and before.version != version:
            record = self._activations.append(before, "candidate", before.version, previous, version, by, why)
        else:
            raise ActivationRefusedError(
                f"{self.name}: the candidate needs another version that is current, found "
                f"{version if before else 'none'}; activate another version first"
            )
        return self._not_removed(before, record)

    def rollback(self, by: str | None = None, why: str = "") -> ActivationRecord:
        """Remove the candidate, and return the new activation record.

        If there is no candidate, make the previous version current again that is still published.

        Raises:
            ActivationRefusedError: If there is neither a candidate nor a previous version.
            ActivationConflictError: If another process changes the current version at the same time.
        """
        self.require()
        before = self.activation()
        if before is not None and before.candidate is not None:
            return self._activations.append(before, "rollback", before.version, before.previous, None, by, why)
        target = None if before is None else self._rollback_target(before)
        if before is None or target is None:
            raise ActivationRefusedError(
                f"{self.name}: no version was current before; choose one with `recollect activate`"
            )
        version, previous = before.previous[target], before.previous[:target]
        self.manifest(version)
        record = self._activations.append(before, "rollback", version, previous, None, by, why)
        return self._not_removed(before, record)

    def desired(self) -> set[str]:
        """The current version, the candidate, and the version that a rollback makes current."""
        record = self.activation()
        if record is None:
            return set()
        target = self._rollback_target(record)
        return record.to_open if target is None else {*record.to_open, record.previous[target]}

    def _rollback_target(self, record: ActivationRecord) -> int | None:
        """The place in `record.previous` of the version that a rollback makes current; None if there is none."""
        for place, version in reversed(list(enumerate(record.previous))):
            if version != record.version and self._is_published(version):
                return place
        return None

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A temporary folder for writing a bundle, on the disk of `bundles`. It is removed afterwards.

        Building a bundle takes long, so a store that cannot be written to is found out first.
        """
        self.files.require_writable()
        self.bundles.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=INCOMING, dir=self.bundles))
        try:
            yield folder
        except OSError as error:
            error.filename = error.filename or str(self.bundles)  # the error "disk full" names no file
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, folder: Path, version: str, keep: bool = False) -> None:
        """Publish a bundle. Its manifest appears last. A version is published once, because it never changes.

        Files that an interrupted publication has written are not written again.

        Args:
            folder: The folder of the bundle: that of `incoming`, or another one.
            keep: Whether the files of the folder stay. Then every copy is read back and compared with the manifest.
        """
        target = f"bundles/{check_version(version)}"
        content, _, manifest = read_signed_manifest(folder)
        _require_version(manifest, version, f"{self.name}/{target}")
        if self._is_published(version):
            raise self._already_published(target)
        self.files.require_writable()
        for name, expected in manifest.files.items():
            if keep and self._holds(f"{target}/{name}", expected):
                continue
            self.files.upload(folder / name, f"{target}/{name}", keep)
            if keep and not self._holds(f"{target}/{name}", expected):
                raise BundleError(
                    f"{self.name}/{target}/{name}: expected the file of the manifest after the copy, found another "
                    "file; copy the version again"
                )
        if (folder / SIGNATURE).exists():
            self.files.upload(folder / SIGNATURE, f"{target}/{SIGNATURE}", keep)
        if not self.files.create(f"{target}/{MANIFEST}", content):
            raise self._already_published(target)

    def copy(self, version: str, target: Store) -> bool:
        """Copy a published version to another store; return False if the target already contains the same bundle.

        Every file is verified in both stores. The version appears in the target after all files are complete. A copy
        that was interrupted leaves no version, and can be started again. A version with its keys in
        an engine is refused, and so is another bundle with this name in the target.
        """
        bundle = self.open(version)
        if bundle.manifest.engine is not None:
            raise StoreError(
                f"{self.name}/bundles/{version}: expected a version with its keys in files, found one whose keys are "
                f"in Milvus, which is not copied; build it again with --store {target.name}"
            )
        try:
            existing = target.manifest(version)
        except StoreError:  # not published. If the target does not answer, the publication fails with the reason.
            target.publish(bundle.folder, version, keep=True)
            return True
        if existing != bundle.manifest:
            raise StoreError(
                f"{target.name}/bundles/{version}: expected a new version or an equal copy, found another bundle; "
                "a published version never changes: build the bundle again"
            )
        return False

    def engines(self) -> dict[str, Engine]:
        """The engine of each version whose keys are in one. A broken version is left out."""
        engines = {}
        for version in self.versions():
            with contextlib.suppress(StoreError, BundleError):
                if (engine := self.manifest(version).engine) is not None:
                    engines[version] = engine
        return engines

    def prune(
        self, keep: int, in_use: Callable[[], Collection[str]], dry_run: bool = False
    ) -> Iterator[tuple[str, int]]:
        """Remove old versions, the oldest first. Yield the name and the size in bytes of each one after its removal.

        A version is kept if it is one of the newest, current, the candidate, the target of a rollback, or open in a
        replica (`in_use`). The newest are those with the last names, which have the time of the builder's clock, and
        those
        that were written last by the clock of the store: the clock of a builder can be late.

        All conditions are read again right before a version is removed, because another process may activate a version
        meanwhile.

        Raises:
            RedisError: If `in_use` cannot read the reports of the replicas.
        """
        self.require()
        by_name = self.versions()
        by_time = sorted(by_name, key=lambda version: self.files.status(f"bundles/{version}").modified)
        for version in by_name[:-keep]:
            if version in by_time[-keep:]:
                continue

            def is_unused(version: str = version) -> bool:
                return version not in {*self.desired(), *in_use()}

            if not is_unused():
                continue
            size_bytes = self.files.status(f"bundles/{version}").size_bytes
            if dry_run or self.remove(version, is_unused):
                yield version, size_bytes
        if not dry_run:
            self._remove_abandoned({*self.desired(), *in_use()})

    def remove(self, version: str, is_unused: Callable[[], bool]) -> bool:
        """Remove a published version if it is unused; return whether it was removed.

        `is_unused` is called again after the version was withdrawn.
        """
        folder = f"bundles/{check_version(version)}"
        manifest = self.files.read(f"{folder}/{MANIFEST}")
        if manifest is None or not is_unused():
            return False
        self.files.delete(f"{folder}/{MANIFEST}")
        unused = False
        try:
            unused = is_unused()
        finally:  # also if the function fails, because the version may be in use
            if not unused:
                self.files.create(f"{folder}/{MANIFEST}", manifest)
        if unused:
            self.files.delete_folder(folder)
        return unused

    def _remove_abandoned(self, keep: Collection[str]) -> None:
        """Remove the files of writers and removals that were interrupted, which nobody has written to for two days."""
        oldest = datetime.now(UTC) - MAX_WRITE_AGE
        for version in self.files.names("bundles"):
            folder = f"bundles/{version}"
            is_bundle = is_version(version) and not self._is_published(version) and version not in keep
            if is_bundle and self.files.status(folder).modified < oldest:
                self.files.delete_folder(folder)
        remove_abandoned_files(self.root)

    def _not_removed(self, before: ActivationRecord | None, record: ActivationRecord) -> ActivationRecord:
        """Return a new record. If its new version was removed meanwhile, return to the record before it."""
        added = record.to_open - (before.to_open if before else set())
        removed = [version for version in added if not self._is_published(version)]
        if not removed:
            return record
        outcome = "no version is current that can be served"
        if before is not None:
            why = f"{removed[0]} was removed at the same time"
            self._activations.append(record, "rollback", before.version, before.previous, None, record.by, why)
            outcome = f"{before.version} is current again"
        raise StoreError(
            f"{self.name}/bundles/{removed[0]}: expected a published version, but it was removed at the same time; "
            f"{outcome}: activate another version"
        )

    def _is_published(self, version: str) -> bool:
        return self.files.has(f"bundles/{version}/{MANIFEST}")

    def _holds(self, name: str, expected: FileInfo) -> bool:
        """Whether the store holds a file with this size and SHA-256. The file is read completely."""
        if not self.files.has(name):
            return False
        digest, size = hashlib.sha256(), 0
        for piece in self.files.pieces(name):
            digest.update(piece)
            size += len(piece)
        return (size, digest.hexdigest()) == (expected.size, expected.sha256)

    def _keys(self) -> VerifyKeys | None:
        return self.verify_keys.content if self.verify_keys else None

    def _no_version(self, version: str) -> StoreError:
        self.require()
        if self.files.can_list and self.files.names(f"bundles/{version}"):
            return UnknownVersionError(
                f"{self.name}/bundles/{version}: expected a bundle with {MANIFEST}, found one without: a copy is in "
                "progress or was interrupted; copy the version again, or build another one"
            )
        return UnknownVersionError(
            f"{self.name}: expected a published version, found no {version!r}; the latest: {self._latest() or 'none'}"
        )

    def _already_published(self, name: str) -> StoreError:
        return StoreError(f"{self.name}/{name}: expected a new version, found one already published; build again")

    def _latest(self) -> str:
        """The names of the latest versions, for error messages."""
        if not self.files.can_list:
            return "unknown, because the server cannot list folders"
        return ", ".join(self.versions()[-3:])


def _require_version(manifest: Manifest, version: str, folder: str) -> None:
    if manifest.version != version:
        raise BundleError(f"{folder}: expected version {version}, manifest says {manifest.version}")
