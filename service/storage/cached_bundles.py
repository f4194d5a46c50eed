"""Copies the bundles of a store into a private cache, checks the copies, and maps them into memory.

Only the copy is trusted. The files of the store can change at any time: a program that can write to the store could
change a file after its check. No other user can write to the copy.

A cached bundle is used only while its manifest equals the manifest in the store.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from recollect.service.bundle.bundle import Bundle, open_bundle
from recollect.service.bundle.files import MANIFEST, SIGNATURE
from recollect.service.bundle.integrity import read_manifest
from recollect.service.bundle.manifest import Manifest, check_version
from recollect.service.bundle.signing import VerifyKeys
from recollect.service.errors import BundleError, StoreError
from recollect.service.reloaded_file import ReloadedFile
from recollect.service.storage.bundle_cache import BundleCache

_LOCK_POLL_SECONDS = 0.1


class BundleSource(Protocol):
    """The files of a store, from which bundles are copied: `FolderSource` or `ObjectFolder`."""

    name: str

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if the file does not exist."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file in pieces of a few megabytes."""

    def clone(self, name: str, target: int) -> bool:
        """Let an empty file share the disk blocks of a file; return False if this is not possible."""


class CachedBundles:
    """The bundles of a store, opened from a cache.

    Args:
        source: The files of the store.
        cache: The cache; several processes may use it.
        verification: Checks every copy before it is used.
        current: Returns the current version of the store, which stays in the cache.
        unknown_version: Makes the error for a version that the store does not contain.
        closed: Event that stops a copy in progress with an error.
    """

    def __init__(
        self,
        source: BundleSource,
        cache: BundleCache,
        verification: Verification,
        current: Callable[[], str | None],
        unknown_version: Callable[[str], StoreError],
        closed: threading.Event,
    ) -> None:
        self._source, self._cache, self._verification = source, cache, verification
        self._current, self._unknown_version, self._closed = current, unknown_version, closed

    def path(self, version: str) -> Path:
        """The folder of a version in the cache; the version is copied if it is not cached.

        Raises:
            StoreError, BundleError: As in `open`.
        """
        with self._cache.copy_lock(self._wait):
            self._copy(version)
        return self._cache.bundles / version

    def manifest(self, version: str) -> Manifest:
        """The manifest of a version.

        Raises:
            StoreError: If the version is not published.
            BundleError: If the manifest is broken, is not signed, or belongs to another version.
        """
        with self._cache.incoming() as folder:
            return self._copy_manifest(version, folder)

    def open(self, version: str, pause: Callable[[], None] | None = None, share_with: Sequence[Bundle] = ()) -> Bundle:
        """Copy a published version if it is not cached, check the files of the copy, then map them.

        If the cached bundle is damaged, it is copied again, once.

        Args:
            version: The version.
            pause: Called between the steps, so that a caller can slow them down.
            share_with: Other open bundles of the store; see `open_bundle`.

        Raises:
            StoreError: If the version is not published, cannot be copied, or does not fit on the disk, or other users
                can write to the cache.
            BundleError: If a file differs from the published file, is not signed, or belongs to another version.
        """
        try:
            return self._open(version, pause, share_with)
        except _DamagedCopyError:
            return self._open(version, pause, share_with, again=True)

    def _open(
        self, version: str, pause: Callable[[], None] | None, share_with: Sequence[Bundle], again: bool = False
    ) -> Bundle:
        folder = self._cache.bundles / check_version(version)
        with contextlib.ExitStack() as in_use:
            with self._cache.copy_lock(self._wait):
                copied = self._copy(version, pause, again)
                in_use.callback(os.close, self._cache.lock_in_use(version))
            try:
                with self._errors_name_source(folder, version):
                    bundle = self._verification.open(folder, version, pause, share_with)
            except BundleError as error:
                if not copied:
                    raise _DamagedCopyError from None
                self._cache.remove(version)
                raise error from None
            weakref.finalize(bundle, in_use.pop_all().close)
        return bundle

    def _copy(self, version: str, pause: Callable[[], None] | None = None, again: bool = False) -> bool:
        """Copy a version if it is not cached, or if `again` is true; return whether it was copied."""
        with self._cache.incoming() as folder:
            manifest = self._copy_manifest(version, folder)
            if not again and self._cache.contains(version, (folder / MANIFEST).read_bytes()):
                return False
            with contextlib.suppress(StoreError):  # if the current version is unknown, no copy is removed
                self._cache.remove_old(keep=(version, self._current()))
            remaining = manifest.size_bytes
            for name, file in manifest.files.items():
                self._copy_file(f"bundles/{version}/{name}", folder / name, file.size, remaining, pause)
                remaining -= file.size
            self._cache.remove(version)
            with self._write_errors(f"bundles/{version}"):
                self._cache.publish(folder, version)
        return True

    def _copy_manifest(self, version: str, folder: Path) -> Manifest:
        """Copy the manifest and signature of a version, and check them before any other file is copied."""
        for name in (MANIFEST, SIGNATURE):
            content = self._source.read(f"bundles/{check_version(version)}/{name}")
            if content is not None:
                with self._write_errors(f"bundles/{version}/{name}"):
                    (folder / name).write_bytes(content)
            elif name == MANIFEST:
                raise self._unknown_version(version)
        with self._errors_name_source(folder, version):
            return self._verification.read_manifest(folder, version)

    def _copy_file(
        self, name: str, path: Path, size: int, size_with_next_files: int, pause: Callable[[], None] | None
    ) -> None:
        remaining = size
        with path.open("xb") as file:
            if self._source.clone(name, file.fileno()):
                return
            self._require_space(name, size_with_next_files)
            for piece in self._source.pieces(name):
                if self._closed.is_set():
                    raise self._stopped()
                remaining -= len(piece)
                if remaining < 0:
                    raise BundleError(
                        f"{self._source.name}/{name}: expected {size:,} bytes, found more; build the bundle again"
                    )
                with self._write_errors(name):
                    file.write(piece)
                    file.flush()
                if pause:
                    pause()

    def _require_space(self, name: str, size_bytes: int) -> None:
        if (free := shutil.disk_usage(self._cache.bundles).free) < size_bytes:
            raise StoreError(
                f"{self._source.name}/{name}: expected {size_bytes:,} bytes of free space in {self._cache.bundles}, "
                f"found {free:,}; free some space, or choose another --bundle-cache"
            )

    @contextlib.contextmanager
    def _write_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"{self._source.name}/{name}: expected to write a copy in {self._cache.bundles}, found: "
                f"{error.strerror}; free some space, or choose another --bundle-cache"
            ) from None

    @contextlib.contextmanager
    def _errors_name_source(self, folder: Path, version: str) -> Iterator[None]:
        """In an error message, replace the path of the copy by the name of the file in the store."""
        try:
            yield
        except BundleError as error:
            name = f"{self._source.name}/bundles/{version}"
            raise BundleError(str(error).replace(str(folder), name)) from None

    def _wait(self) -> None:
        if self._closed.wait(_LOCK_POLL_SECONDS):
            raise self._stopped()

    def _stopped(self) -> StoreError:
        return StoreError(f"{self._source.name}: the copy was stopped because the service is shutting down")


class _DamagedCopyError(Exception):
    """Raised if a cached bundle does not match the manifest in the store."""


class Verification:
    """The checks that a store makes before it uses a bundle.

    Args:
        keys: Public keys; one of them must have signed each bundle. None: bundles need no signature.
    """

    def __init__(self, keys: ReloadedFile[VerifyKeys] | None) -> None:
        self._keys = keys

    def open(
        self,
        folder: Path,
        version: str,
        pause: Callable[[], None] | None = None,
        share_with: Sequence[Bundle] = (),
    ) -> Bundle:
        """Check the files of a bundle, then map them into memory. The arguments are as in `open_bundle`.

        Raises:
            BundleError: If a file is not the published file, is not signed, or belongs to another version.
        """
        bundle = open_bundle(folder, self._current_keys(), pause, share_with)
        _check_version_of(bundle.manifest, version, folder)
        return bundle

    def read_manifest(self, folder: Path, version: str) -> Manifest:
        """Check and read the manifest of a bundle. The other files are not needed.

        Raises:
            BundleError: If the manifest is broken, is not signed, or belongs to another version.
        """
        manifest = read_manifest(folder, self._current_keys())
        _check_version_of(manifest, version, folder)
        return manifest

    def _current_keys(self) -> VerifyKeys | None:
        return self._keys.content if self._keys else None


def _check_version_of(manifest: Manifest, version: str, folder: Path) -> None:
    if manifest.version != version:
        raise BundleError(f"{folder}: expected version {version}, manifest says {manifest.version}")
