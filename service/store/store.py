"""The bundle store: all bundles, and which one is current.

    store/   bundles/<version>/   whole bundles only
             CURRENT              one line: the version that replicas serve
             HISTORY              the versions that were current, one a line, the current one last

A bundle is written aside in `.incoming-*`, flushed to disk and renamed; CURRENT moves last. So a store is valid
after every step, and what a killed builder leaves behind is removed by the next one. `remote.py` keeps the same layout
at a URL.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from service.bundle.bundle import Bundle, open_bundle
from service.bundle.integrity import read_manifest
from service.bundle.manifest import Manifest, check_version, is_version
from service.bundle.signing import read_verify_key
from service.errors import BundleError, StoreError, UnknownVersionError

INCOMING = ".incoming-"


def open_store(location: Path | str, verify_key: Path | None = None, bundle_cache: Path | None = None) -> Store:
    """The store in a folder or, as in `s3://bucket/store`, at any URL that fsspec knows.

    Args:
        location: The folder, or the URL.
        verify_key: Whose signature bundles need; None: nobody's.
        bundle_cache: Where bundles of a store at a URL are kept; None: in the user's own cache.

    Raises:
        KeyFileError: If `verify_key` is no Ed25519 public key.
        StoreError: If nothing here knows the URL's protocol, or there is no folder to keep bundles in.
    """
    if isinstance(location, Path) or "://" not in location:
        return Store(Path(location), verify_key)
    from service.store.remote import RemoteStore  # a folder needs no fsspec

    return RemoteStore(location, verify_key, bundle_cache)


class Store:
    """A store's folder; with a public key, nothing is taken from there that its private half did not sign.

    Attributes:
        root: The folder.
        name: What messages call the store.

    Raises:
        KeyFileError: If `verify_key` is no Ed25519 public key.
    """

    def __init__(self, root: Path, verify_key: Path | None = None) -> None:
        self.root = root
        self.name = str(root)
        self.bundles = root / "bundles"
        self._verify_key = read_verify_key(verify_key) if verify_key else None

    def require(self) -> None:
        """Refuse a path that is no store.

        Raises:
            StoreError: If there is no such folder.
        """
        if not self.root.is_dir():
            raise self._no_store()

    def versions(self) -> list[str]:
        """All published versions, oldest first."""
        if not self.bundles.is_dir():
            return []
        return sorted(path.name for path in self.bundles.iterdir() if is_version(path.name) and path.is_dir())

    def current(self) -> str | None:
        """The version that replicas serve; None if none is.

        Raises:
            StoreError: If CURRENT holds no version's name.
        """
        content = self._read("CURRENT")
        if content is None:
            return None
        if (version := named_in(content)) is None:
            raise StoreError(f"{self.name}/CURRENT: expected a version's name; run `recollect activate`")
        return version

    def require_current(self) -> str:
        """The current version.

        Raises:
            StoreError: If there is no store or nothing is current.
        """
        current = self.current()
        if current is None:
            self.require()
            known = ", ".join(self.versions()[-3:]) or "no version at all: run `recollect build`"
            raise StoreError(f"{self.name}: no version is current; `recollect activate` one of: {known}")
        return current

    def resolve(self, version: str) -> str:
        """The version's name; `current` stands for the one that is.

        Raises:
            StoreError: If nothing is current.
        """
        return self.require_current() if version == "current" else version

    def path(self, version: str) -> Path:
        """A published version's folder.

        Raises:
            StoreError: If the store has no such version.
        """
        folder = self.bundles / check_version(version)
        if not folder.is_dir():
            raise self._no_version(version)
        return folder

    def manifest(self, version: str) -> Manifest:
        """A published version's manifest.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If the manifest cannot be read, lacks its signature, or is another version's.
        """
        return self._read_manifest(self.path(version), version)

    def open(self, version: str, pause: Callable[[], None] | None = None) -> Bundle:
        """Check and map a published version, and call `pause` between steps.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If it is not what was published, lacks its signature, or is another version.
        """
        return self._open(self.path(version), version, pause)

    def close(self) -> None:
        """Give up what takes long, as the service stops: nothing does in a folder."""

    def activate(self, version: str) -> None:
        """Make a version current.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If its manifest is broken.
        """
        self.manifest(version)
        with self._moving_current():
            history = self._history()
            if history[-1:] != [version]:
                self._set_current([*history, version])

    def rollback(self) -> str:
        """Return to the version that was current before, and name it.

        Raises:
            StoreError: If there is none.
        """
        self.require()
        with self._moving_current():
            history = self._history()
            others = set(self.versions()) - set(history[-1:])
            while history and history[-1] not in others:
                history.pop()  # current, or removed since
            if not history:
                raise UnknownVersionError(
                    f"{self.name}: no version was current before; choose one with `recollect activate`"
                )
            self.manifest(history[-1])
            self._set_current(history)
            return history[-1]

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder to write a bundle in, on the store's own disk; gone afterwards unless published."""
        self.bundles.mkdir(parents=True, exist_ok=True)
        with self._lock():  # or another builder may take a folder that is not locked yet for an abandoned one
            self._remove_abandoned()
            folder = Path(tempfile.mkdtemp(prefix=INCOMING, dir=self.bundles))
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held while its builder lives
        try:
            yield folder
        except OSError as error:
            error.filename = error.filename or str(self.bundles)  # a full disk names no file
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    def publish(self, folder: Path, version: str) -> None:
        """Flush an incoming bundle to disk and give it its name.

        Raises:
            StoreError: If the name is malformed, or taken: a published bundle never changes.
        """
        target = self.bundles / check_version(version)
        for path in folder.iterdir():
            _sync(path)
        folder.chmod(0o755)
        _sync(folder)
        if target.exists():
            raise StoreError(f"{target}: expected a new version, found one already published; build again")
        folder.rename(target)
        _sync(self.bundles)

    def _open(self, folder: Path, version: str, pause: Callable[[], None] | None = None) -> Bundle:
        bundle = open_bundle(folder, self._verify_key, pause)
        _check_name(folder, version, bundle.manifest)
        return bundle

    def _read_manifest(self, folder: Path, version: str) -> Manifest:
        manifest = read_manifest(folder, self._verify_key)
        _check_name(folder, version, manifest)
        return manifest

    def _no_store(self) -> StoreError:
        return StoreError(f"{self.name}: expected a bundle store, found none; run `recollect build`")

    def _no_version(self, version: str) -> StoreError:
        self.require()
        known = ", ".join(self.versions()[-3:]) or "none"
        return UnknownVersionError(
            f"{self.name}: expected a published version, found no {version!r}; the latest: {known}"
        )

    def _remove_abandoned(self) -> None:
        for folder in self.bundles.glob(f"{INCOMING}*"):
            try:
                descriptor = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # published since
                continue
            with contextlib.suppress(BlockingIOError):  # its builder is at work
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _moving_current(self) -> contextlib.AbstractContextManager[None]:
        return self._lock()

    def _history(self) -> list[str]:
        """Versions that were current; CURRENT, moved last, is the truth where the two disagree."""
        history = (self._read("HISTORY") or b"").decode(errors="replace").split()
        current = named_in(self._read("CURRENT") or b"")
        if current is None:  # or no name of a version: `activate` writes it anew
            return []
        return history[: len(history) - history[::-1].index(current)] if current in history else [*history, current]

    def _set_current(self, history: list[str]) -> None:
        self._write("HISTORY", "".join(f"{version}\n" for version in history).encode())
        self._write("CURRENT", f"{history[-1]}\n".encode())

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        _replace(self.root / name, content)


def named_in(content: bytes) -> str | None:
    """The version that CURRENT names; None if it holds no version's name."""
    name = content.decode(errors="replace").strip()
    return name if is_version(name) else None


def _check_name(folder: Path, version: str, manifest: Manifest) -> None:
    if manifest.version != version:
        raise BundleError(f"{folder}: expected version {version}, manifest says {manifest.version}")


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}{INCOMING}{os.getpid()}")
    try:
        aside.write_bytes(content)
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
