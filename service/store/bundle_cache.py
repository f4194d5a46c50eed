"""The cache of a store at a URL: one copy of each downloaded bundle for all processes of the machine.

    cache/   <store>-<hash>/bundles/<version>/

A process locks each bundle that it has open, so no other process removes it. If an operator removes it, nothing fails:
Linux keeps a mapped file until the last process closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from service.errors import StoreError
from service.store.bundle_folder import INCOMING, BundleFolder, try_lock

# The versions opened last stay in the cache beside the current version, so that a rollback needs no download.
_KEPT_VERSIONS = 2


def default_cache() -> Path:
    """The folder `recollect` among the user's caches.

    Raises:
        StoreError: If the user has no home folder.
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (configured if configured.is_absolute() else Path.home() / ".cache") / "recollect"
    except RuntimeError:
        raise StoreError(
            "expected a home folder to keep bundles in, found none; choose a folder with --bundle-cache"
        ) from None


def folder_name(store: str) -> str:
    """The name of a store's folder in the cache: readable, and unique by its hash."""
    readable = re.sub(r"[^0-9A-Za-z]+", "-", store)[-48:].strip("-")
    return f"{readable}-{hashlib.sha256(store.encode()).hexdigest()[:8]}"


class BundleCache(BundleFolder):
    """Bundles downloaded from one store."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bundles.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def download_lock(self, wait: Callable[[], None]) -> Iterator[None]:
        """Let one process at a time download, so that the others find the bundle that it downloaded.

        Args:
            wait: Called while another process holds the lock; may raise to end the wait.
        """
        descriptor = os.open(self.bundles, os.O_RDONLY)
        try:
            while not try_lock(descriptor):
                wait()
            yield
        finally:
            os.close(descriptor)

    def lock_in_use(self, version: str) -> int:
        """Lock a bundle against removal and mark it as the last one opened.

        Returns:
            A file descriptor; closing it releases the lock.
        """
        descriptor = os.open(self.bundles / version, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(self.bundles / version)
        return descriptor

    def remove_old(self, keep: Collection[str | None]) -> None:
        """Remove bundles, except those in use, those opened last, and those in `keep`."""
        by_use = sorted(self.versions(), key=lambda version: (self.bundles / version).stat().st_mtime_ns)
        for version in by_use[:-_KEPT_VERSIONS]:
            if version not in keep:
                self.remove(version, in_use=False)

    def remove(self, version: str, in_use: bool = True) -> None:
        """Remove a bundle in one step, if it is cached; with `in_use=False`, only if no process has it open."""
        folder = self.bundles / version
        if not folder.is_dir():
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if in_use or try_lock(descriptor):
                aside = Path(tempfile.mkdtemp(prefix=INCOMING, dir=self.bundles))
                folder.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(descriptor)
