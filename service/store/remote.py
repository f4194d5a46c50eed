"""The store at a URL such as `s3://bucket/store`: bundles are downloaded into a local cache, checked, then opened.

    URL/     bundles/<version>/  ACTIVATION  CURRENT  LOG      as in a store's folder

An object store has neither locks nor renames. Three rules replace locks and renames. A version is published when its
manifest.json exists, which is uploaded last. ACTIVATION and LOG are replaced only if they have not changed since they
were read, so two activations at the same time get different generations. A cached bundle is used only while its
manifest equals the manifest in the store.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.files import MANIFEST
from recollect.service.bundle.manifest import FileInfo, Manifest, check_version, is_version
from recollect.service.errors import BundleError, StoreError
from recollect.service.storage.bundle_cache import BundleCache, default_cache
from recollect.service.storage.bundle_folder import already_published
from recollect.service.storage.cached_bundles import BundleSource
from recollect.service.storage.object_folder import ObjectFolder
from recollect.service.store.activation_record import ACTIVATION
from recollect.service.store.files import INCOMING
from recollect.service.store.store import Store, copy_manifest

# A version without a manifest is an upload in progress while its newest file is younger than this age. The upload of
# one file ends after a day at the latest.
_MAX_UPLOAD_AGE = timedelta(days=2)


class RemoteStore(Store):
    """A store at a URL. `local` is the store's local cache.

    Raises:
        KeyFileError: If `verify_key` is not a file of Ed25519 public keys.
        StoreError: If the URL's scheme is unknown, no folder for the cache can be found, or other users can write to
            the cache.
    """

    def __init__(self, url: str, verify_key: Path | None = None, cache: Path | None = None) -> None:
        self._remote = ObjectFolder(url)
        self._cache = BundleCache(cache or default_cache(), self._remote.name)
        self._cache.prepare()
        super().__init__(self._cache.root, verify_key, files=self._remote)
        self.local = self._cache

    def require(self) -> None:
        if self._remote.read(ACTIVATION) is not None:
            return
        with contextlib.suppress(StoreError):  # plain web servers cannot list folders
            if self.versions():
                return
        raise self._no_store()

    def versions(self) -> list[str]:
        names = sorted(name for name in self._remote.names("bundles") if is_version(name))
        return [name for name in names if self._remote.has(f"bundles/{name}/{MANIFEST}")]

    def path(self, version: str) -> Path:
        """The folder of a published version in the cache; the version is downloaded if it is not cached."""
        return self._copies.path(version)

    def manifest(self, version: str) -> Manifest:
        return self._copies.manifest(version)

    def open(self, version: str, pause: Callable[[], None] | None = None, share_with: Sequence[Bundle] = ()) -> Bundle:
        return self._copies.open(version, pause, share_with)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A temporary folder in the cache for writing a bundle.

        Raises:
            StoreError: If the store cannot be written to. Building a bundle takes long, so a small file is written to
                the store first, to test the permission.
        """
        self._remote.write(INCOMING + "try", b"")
        with self.local.incoming() as folder:
            yield folder

    def publish(self, folder: Path, version: str) -> None:
        """Upload a bundle; its manifest is uploaded last.

        An upload that is killed leaves no version, and the next upload replaces its files.

        Raises:
            StoreError: If the version is malformed or already published, or the store cannot be written to.
        """
        target = f"bundles/{check_version(version)}"
        self._require_unpublished(version)
        for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name)):
            self._remote.upload(path, f"{target}/{path.name}")

    def publish_copy(self, folder: Path, version: str) -> None:
        """Upload a copy of a bundle's folder. Every uploaded file is read back and compared with the manifest.

        Files that an interrupted copy uploaded completely are not uploaded again.
        """
        target = f"bundles/{check_version(version)}"
        with self.incoming() as copy:
            copy_manifest(folder, copy)
            manifest = self._verification.read_manifest(copy, version)
            self._require_unpublished(version)
            for name, expected in manifest.files.items():
                if not self._has_file(f"{target}/{name}", expected):
                    self._remote.upload(folder / name, f"{target}/{name}")
                    if not self._has_file(f"{target}/{name}", expected):
                        raise BundleError(
                            f"{self.name}/{target}/{name}: expected the file of the manifest after the upload, found "
                            "another file; copy the version again"
                        )
            self.publish(copy, version)

    def size_bytes(self, version: str) -> int:
        return sum(file.size_bytes for file in self._remote.files(f"bundles/{version}").values())

    def remove(self, version: str, is_unused: Callable[[], bool]) -> bool:
        """Remove a published version if it is unused.

        An object store has no lock. So the manifest is removed first, which withdraws the version. If another process
        has activated the version meanwhile, or this cannot be found out, the manifest is written again.
        """
        folder = f"bundles/{check_version(version)}"
        manifest = self._remote.read(f"{folder}/{MANIFEST}")
        if manifest is None or not is_unused():
            return False
        self._remote.delete(f"{folder}/{MANIFEST}")
        unused = False
        try:
            unused = is_unused()
        finally:  # also if the function fails, because the version may be in use
            if not unused:
                self._remote.write(f"{folder}/{MANIFEST}", manifest)
        if unused:
            self._remove_files(folder)
        return unused

    def remove_abandoned(self) -> None:
        """Remove the files of uploads and removals that were interrupted.

        Such a file has no manifest beside it, like a file of an upload in progress. Only its age shows the difference.
        """
        oldest_upload = datetime.now(UTC) - _MAX_UPLOAD_AGE
        for name in filter(is_version, self._remote.names("bundles")):
            files = self._remote.files(f"bundles/{name}")
            if MANIFEST not in files and all(file.modified < oldest_upload for file in files.values()):
                self._remove_files(f"bundles/{name}")

    def _latest(self) -> str:
        try:
            return super()._latest()
        except StoreError:
            return "unknown, because the server cannot list folders"

    def _open_cache(self) -> tuple[BundleSource, BundleCache]:
        return self._remote, self._cache

    def _require_unpublished(self, version: str) -> None:
        if self._remote.has(f"bundles/{version}/{MANIFEST}"):
            raise already_published(f"{self.name}/bundles/{version}")

    def _has_file(self, name: str, expected: FileInfo) -> bool:
        """Whether the object store holds a file with this size and SHA-256. The file is read completely."""
        if self._remote.size_bytes(name) != expected.size:
            return False
        digest = hashlib.sha256()
        for piece in self._remote.pieces(name):
            digest.update(piece)
        return digest.hexdigest() == expected.sha256

    def _remove_files(self, folder: str) -> None:
        self._remote.delete(*(f"{folder}/{name}" for name in self._remote.files(folder)))
