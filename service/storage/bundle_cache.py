"""The cache of a store: the processes of one user on the machine share one copy of each bundle.

    cache/   <store>-<hash>/bundles/<version>/

No other user can write to the cache, so a bundle cannot change after its files were checked.

A process locks each bundle that it has open, so that no other process removes the bundle. If an operator removes an
open bundle, the process keeps working: Linux keeps a mapped file until the last process closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from recollect.service.bundle.files import MANIFEST
from recollect.service.errors import StoreError
from recollect.service.storage.bundle_folder import BundleFolder, try_lock

# Number of versions that stay in the cache in addition to the current version: the versions that were opened last. They
# make a rollback possible without a download.
_KEPT_VERSIONS = 2


def default_cache() -> Path:
    """The folder `recollect` in the user's cache folder.

    Raises:
        StoreError: If the user has no home folder.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (configured if configured.is_absolute() else Path.home() / ".cache") / "recollect"
    except RuntimeError:
        raise StoreError(
            "expected a home folder for copies of bundles, found none; choose a folder with --bundle-cache"
        ) from None


def folder_name(store: str) -> str:
    """The name of a store's folder in the cache: readable, and unique because it contains a hash."""
    readable = re.sub(r"[^0-9A-Za-z]+", "-", store)[-48:].strip("-")
    return f"{readable}-{hashlib.sha256(store.encode()).hexdigest()[:8]}"


class BundleCache(BundleFolder):
    """The bundles that were copied from one store. `prepare` creates the folders when they are first needed.

    Args:
        cache: The cache of all stores.
        store: The location of the store.
    """

    def __init__(self, cache: Path, store: str) -> None:
        super().__init__(cache / folder_name(store))
        self._cache = cache

    def prepare(self) -> None:
        """Create the folders.

        Raises:
            StoreError: If the folders cannot be created, or another user could change a checked file in them.
        """
        for folder in (self._cache, self.root, self.bundles):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"{folder}: expected a folder for copies of bundles, found: {error.strerror}; "
                    "choose a folder that the service can write to with --bundle-cache"
                ) from None
            if not _is_private(folder):
                status = folder.stat()
                raise StoreError(
                    f"{folder}: expected a folder that only user {os.geteuid()} can write to, found owner "
                    f"{status.st_uid} and mode {stat.S_IMODE(status.st_mode):04o}; "
                    "run `chmod go-w` as its owner, or choose another --bundle-cache"
                )

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """As in BundleFolder.

        Raises:
            StoreError: If the cache belongs to another user, or other users can write to it.
        """
        self.prepare()
        with super().incoming() as folder:
            yield folder

    @contextlib.contextmanager
    def copy_lock(self, wait: Callable[[], None]) -> Iterator[None]:
        """Let only one process at a time copy, so that waiting processes then find the bundle in the cache.

        Args:
            wait: Called while another process holds the lock; it may raise an error to end the wait.

        Raises:
            StoreError: If the cache belongs to another user, or other users can write to it.
        """
        self.prepare()
        descriptor = os.open(self.bundles, os.O_RDONLY)
        try:
            while not try_lock(descriptor):
                wait()
            yield
        finally:
            os.close(descriptor)

    def contains(self, version: str, manifest: bytes) -> bool:
        """Whether a bundle with this manifest is cached, and no other user can write to its files."""
        folder = self.bundles / version
        try:
            return (folder / MANIFEST).read_bytes() == manifest and all(map(_is_private, (folder, *folder.iterdir())))
        except OSError:
            return False

    def lock_in_use(self, version: str) -> int:
        """Lock a cached bundle against removal, and record that it was opened last.

        Returns:
            A file descriptor; closing it releases the lock.
        """
        descriptor = os.open(self.bundles / version, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(self.bundles / version)
        return descriptor

    def remove_old(self, keep: Collection[str | None]) -> None:
        """Remove cached bundles, except bundles in use, the bundles opened last, and the versions in `keep`."""
        by_use = sorted(self.versions(), key=lambda version: (self.bundles / version).stat().st_mtime_ns)
        for version in by_use[:-_KEPT_VERSIONS]:
            if version not in keep:
                self._remove_unused(version)

    def remove(self, version: str) -> None:
        """Remove a bundle from the cache if it is there, even if a process has it open."""
        if (self.bundles / version).is_dir():
            super().remove(version)

    def _remove_unused(self, version: str) -> None:
        descriptor = os.open(self.bundles / version, os.O_RDONLY)
        try:
            if try_lock(descriptor):
                super().remove(version)
        finally:
            os.close(descriptor)


def _is_private(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
