"""The store at a URL such as `s3://bucket/store`: bundles are downloaded into a local cache, checked, then opened.

    URL/     bundles/<version>/  CURRENT  HISTORY      as in a store's folder

An object store has neither locks nor renames. Three rules replace locks and renames. A version is published when its
manifest.json exists, which is uploaded last. If two processes activate versions at the same time, the last writer wins,
and the store stays valid. The file CURRENT is written after the file HISTORY; if they disagree, CURRENT is right. A
cached bundle is used only while its manifest equals the manifest in the store.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from service.bundle.bundle import Bundle
from service.bundle.files import MANIFEST, SIGNATURE
from service.bundle.manifest import Manifest, check_version, is_version
from service.errors import BundleError, StoreError
from service.store.bundle_cache import BundleCache, default_cache, folder_name
from service.store.bundle_folder import INCOMING, already_published
from service.store.object_folder import ObjectFolder
from service.store.store import Store, parse_current

_LOCK_POLL_SECONDS = 0.1


class RemoteStore(Store):
    """A store at a URL. `local` is the store's local cache.

    Raises:
        KeyFileError: If `verify_key` is not an Ed25519 public key.
        StoreError: If the URL's scheme is unknown, or no folder for the cache can be found.
    """

    def __init__(self, url: str, verify_key: Path | None = None, cache: Path | None = None) -> None:
        self._remote = ObjectFolder(url)
        self._closed = threading.Event()
        super().__init__((cache or default_cache()) / folder_name(self._remote.name), verify_key)
        self.name = self._remote.name
        self.local: BundleCache = BundleCache(self.root)

    def require(self) -> None:
        if self._read("CURRENT") is not None:
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
        with self.local.download_lock(self._wait):
            self._download(version)
        return self.bundles / version

    def manifest(self, version: str) -> Manifest:
        with self.local.incoming() as folder:
            return self._download_manifest(version, folder)

    def open(self, version: str, pause: Callable[[], None] | None = None, share_with: Sequence[Bundle] = ()) -> Bundle:
        """Download a published version if it is not cached, check its files, then map them.

        If the cached bundle is damaged, it is downloaded again, once.

        Raises:
            StoreError: If the version is not published, cannot be downloaded, or does not fit on the disk.
            BundleError: If a file differs from the published file, is not signed, or belongs to another version.
        """
        try:
            return self._open_cached(version, pause, share_with)
        except _DamagedCopyError:
            return self._open_cached(version, pause, share_with, again=True)

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
        if self._remote.has(f"{target}/{MANIFEST}"):
            raise already_published(f"{self.name}/{target}")
        for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name)):
            self._remote.upload(path, f"{target}/{path.name}")

    def close(self) -> None:
        """Stop a download in progress with an error, so that the service can shut down."""
        self._closed.set()

    def _lock_current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # an object store has no locks: the last writer wins

    def _latest(self) -> str:
        try:
            return super()._latest()
        except StoreError:
            return "unknown, because the server cannot list folders"

    def _read(self, name: str) -> bytes | None:
        return self._remote.read(name)

    def _write(self, name: str, content: bytes) -> None:
        self._remote.write(name, content)

    def _open_cached(
        self, version: str, pause: Callable[[], None] | None, share_with: Sequence[Bundle], again: bool = False
    ) -> Bundle:
        folder = self.bundles / check_version(version)
        with contextlib.ExitStack() as in_use:
            with self.local.download_lock(self._wait):
                downloaded = self._download(version, again)
                in_use.callback(os.close, self.local.lock_in_use(version))
            try:
                with self._errors_name_url(folder, version):
                    bundle = self._open(folder, version, pause, share_with)
            except BundleError as error:
                if not downloaded:
                    raise _DamagedCopyError from None
                self.local.remove(version)
                raise error from None
            weakref.finalize(bundle, in_use.pop_all().close)
        return bundle

    def _download(self, version: str, again: bool = False) -> bool:
        """Download a version if it is not cached, or if `again` is true; return whether it was downloaded."""
        cached = self.bundles / check_version(version)
        with self.local.incoming() as folder:
            manifest = self._download_manifest(version, folder)
            with contextlib.suppress(FileNotFoundError):
                if not again and (cached / MANIFEST).read_bytes() == (folder / MANIFEST).read_bytes():
                    return False
            self.local.remove_old(keep=(version, parse_current(self._read("CURRENT") or b"")))
            self._require_space(manifest)
            for name, file in manifest.files.items():
                self._download_file(f"bundles/{version}/{name}", folder / name, file.size)
            self.local.remove(version)
            self.local.publish(folder, version)
        return True

    def _download_manifest(self, version: str, folder: Path) -> Manifest:
        """Download the manifest and signature of a version.

        The manifest and the signature are checked before any other file is downloaded.
        """
        for name in (MANIFEST, SIGNATURE):
            content = self._remote.read(f"bundles/{check_version(version)}/{name}")
            if content is not None:
                (folder / name).write_bytes(content)
            elif name == MANIFEST:
                raise self._no_version(version)
        with self._errors_name_url(folder, version):
            return self._read_manifest(folder, version)

    def _download_file(self, name: str, path: Path, size: int) -> None:
        remaining = size
        with path.open("wb") as file:
            for piece in self._remote.pieces(name):
                self._check_open()
                remaining -= len(piece)
                if remaining < 0:
                    raise BundleError(
                        f"{self.name}/{name}: expected {size:,} bytes, found more; build the bundle again"
                    )
                file.write(piece)

    def _require_space(self, manifest: Manifest) -> None:
        if (free := shutil.disk_usage(self.bundles).free) < manifest.size_bytes:
            raise StoreError(
                f"{self.name}/bundles/{manifest.version}: expected {manifest.size_bytes:,} bytes of free space in "
                f"{self.bundles}, found {free:,}; free some space, or choose another --bundle-cache"
            )

    @contextlib.contextmanager
    def _errors_name_url(self, folder: Path, version: str) -> Iterator[None]:
        """In an error message, replace the path of the local file by the URL of the file."""
        try:
            yield
        except BundleError as error:
            raise BundleError(str(error).replace(str(folder), f"{self.name}/bundles/{version}")) from None

    def _wait(self) -> None:
        self._check_open()
        self._closed.wait(_LOCK_POLL_SECONDS)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError(f"{self.name}: the download was stopped because the service is shutting down")


class _DamagedCopyError(Exception):
    """Raised if a cached bundle does not match the downloaded manifest."""
