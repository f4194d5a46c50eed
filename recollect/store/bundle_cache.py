"""The bundle cache: checked copies of a store's bundles in a private folder of this machine.

    cache/   <store>-<hash>/bundles/<version>/         a copy
                            bundles/.copy-<host>/      a copy in progress

The processes of one user on the machine share the copies. No other user can write to them, so a bundle cannot change
after its check. A copy is used only while its manifest equals the manifest in the store.

A copy of a version that a process has open may be removed: Linux keeps a mapped file until the last process closes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.files import MANIFEST, SIGNATURE
from recollect.core.bundle.manifest import is_version
from recollect.core.errors import BundleError, StoreError
from recollect.store.files import file_errors, remove_abandoned_files

if TYPE_CHECKING:
    from recollect.store.store import Store

# Number of versions that stay in the cache besides the current one: the versions that were opened last. They make a
# rollback possible without a download.
_KEPT_VERSIONS = 2
_LOCK_POLL_SECONDS = 0.1


def default_cache() -> Path:
    """The folder `recollect` in the user's cache folder."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (configured if configured.is_absolute() else Path.home() / ".cache") / "recollect"
    except RuntimeError:
        raise StoreError(
            "expected a home folder for copies of bundles, found none; choose a folder with --bundle-cache"
        ) from None


class BundleCache:
    """The copies of the bundles of one store. `prepare` creates the folders when they are first needed."""

    def __init__(self, store: Store, location: str, cache: Path | None) -> None:
        self._store, self._cache = store, cache or default_cache()
        readable = re.sub(r"[^0-9A-Za-z]+", "-", location)[-48:].strip("-")
        self.root = self._cache / f"{readable}-{hashlib.sha256(location.encode()).hexdigest()[:8]}"
        self.bundles = self.root / "bundles"

    def prepare(self) -> None:
        """Create the folders, and check that no other user can change a file in them."""
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

    def open(self, version: str, pause: Callable[[], None] | None, share_with: Sequence[Bundle]) -> Bundle:
        """Copy a published version if it is not cached, check the files of the copy, then map them.

        If the cached copy is damaged, the version is copied again, once. Error messages name the files of the store.
        """
        folder, copied = self.bundles / version, False
        while True:
            with self._copy_lock(pause):
                copied = self._copy(version, pause, again=copied)
            try:
                return self._store.open_folder(folder, version, pause, share_with)
            except BundleError as error:
                if copied:
                    shutil.rmtree(folder, ignore_errors=True)
                    name = f"{self._store.name}/bundles/{version}"
                    raise BundleError(str(error).replace(str(folder), name)) from None
                copied = True

    def _copy(self, version: str, pause: Callable[[], None] | None, again: bool) -> bool:
        """Copy a version if it is not cached, or if `again` is true; return whether it was copied."""
        signed = self._store.signed_manifest(version)
        if not again and self._contains(version, signed.content):
            os.utime(self.bundles / version)
            return False
        self._remove_old(version)
        folder = self.bundles / f".copy-{socket.gethostname()}"
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process: only the holder of the lock copies
        folder.mkdir(mode=0o700)
        try:
            with file_errors(folder, "written"):
                for name, content in ((MANIFEST, signed.content), (SIGNATURE, signed.signature)):
                    if content is not None:
                        (folder / name).write_bytes(content)
                remaining = signed.manifest.size_bytes
                for name, file in signed.manifest.files.items():
                    self._copy_file(version, folder / name, file.size, remaining, pause)
                    remaining -= file.size
                shutil.rmtree(self.bundles / version, ignore_errors=True)
                folder.rename(self.bundles / version)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return True

    def _copy_file(
        self, version: str, path: Path, size: int, size_with_next_files: int, pause: Callable[[], None] | None
    ) -> None:
        source, name = self._store.files, f"bundles/{version}/{path.name}"
        with path.open("xb") as file:
            if source.clone(name, file.fileno()):
                return
            if (free := shutil.disk_usage(self.bundles).free) < size_with_next_files:
                raise StoreError(
                    f"{source.name}/{name}: expected {size_with_next_files:,} bytes of free space in {self.bundles}, "
                    f"found {free:,}; free some space, or choose another --bundle-cache"
                )
            for piece in source.pieces(name):
                size -= len(piece)
                if size < 0:
                    raise BundleError(
                        f"{source.name}/{name}: expected the size in the manifest, found more bytes; build the bundle "
                        "again"
                    )
                file.write(piece)
                file.flush()
                if pause:
                    pause()

    def _contains(self, version: str, manifest: bytes) -> bool:
        """Whether a bundle with this manifest is cached, and no other user can write to its files."""
        folder = self.bundles / version
        try:
            return (folder / MANIFEST).read_bytes() == manifest and all(map(_is_private, (folder, *folder.iterdir())))
        except OSError:
            return False

    def _remove_old(self, version: str) -> None:
        """Remove the copies of all versions, except this one, the current one, and those that were opened last."""
        remove_abandoned_files(self.root)
        try:
            keep = {version, self._store.current()}
        except StoreError:  # if the current version is unknown, no copy is removed
            return
        with contextlib.suppress(FileNotFoundError):  # another process has removed a damaged copy
            copies = sorted((self.bundles / name for name in os.listdir(self.bundles)), key=os.path.getmtime)
            for copy in [copy for copy in copies if is_version(copy.name)][:-_KEPT_VERSIONS]:
                if copy.name not in keep:
                    shutil.rmtree(copy, ignore_errors=True)

    @contextlib.contextmanager
    def _copy_lock(self, pause: Callable[[], None] | None) -> Iterator[None]:
        """Only one process of this machine copies at a time. The others wait, and then find its copy."""
        self.prepare()
        descriptor = os.open(self.bundles, os.O_RDONLY)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_LOCK_POLL_SECONDS)
                if pause:
                    pause()
            yield
        finally:
            os.close(descriptor)


def _is_private(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
