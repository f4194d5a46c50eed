"""A local folder of bundles.

A bundle is written to a temporary folder, flushed to disk and renamed, so that it appears complete or not at all.

root/   bundles/<version>/       published
        bundles/.incoming-*/     being written or removed; the next writer removes a folder whose writer was killed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recollect.service.bundle.manifest import check_version, is_version
from recollect.service.errors import StoreError
from recollect.service.store.files import INCOMING, flush


class BundleFolder:
    """The bundles of a store in a folder, or of the cache of a store at a URL.

    Attributes:
        root: The folder that contains `bundles/`.
        bundles: The folder `bundles/` itself.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bundles = root / "bundles"

    def versions(self) -> list[str]:
        """All published versions, oldest first."""
        if not self.bundles.is_dir():
            return []
        return sorted(path.name for path in self.bundles.iterdir() if is_version(path.name) and path.is_dir())

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """Create a temporary folder for writing a bundle, on the same disk.

        The folder is removed afterwards unless the bundle was published.
        """
        self.bundles.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.root):  # otherwise another writer could remove the folder
            self.remove_abandoned()
            folder = Path(tempfile.mkdtemp(prefix=INCOMING, dir=self.bundles))
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # the lock ends when the writer exits or is killed
        try:
            yield folder
        except OSError as error:
            error.filename = error.filename or str(self.bundles)  # the error "disk full" names no file
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    def publish(self, folder: Path, version: str) -> None:
        """Flush a written bundle to disk, then rename its folder to the name of its version.

        Raises:
            StoreError: If the version is malformed or already published: a published bundle never changes.
        """
        target = self.bundles / check_version(version)
        for path in folder.iterdir():
            flush(path)
        folder.chmod(0o755)
        flush(folder)
        if target.exists():
            raise already_published(str(target))
        folder.rename(target)
        flush(self.bundles)

    def remove(self, version: str) -> None:
        """Remove a published bundle. Its folder is renamed first, so that the version disappears in one step."""
        aside = Path(tempfile.mkdtemp(prefix=INCOMING, dir=self.bundles))
        (self.bundles / version).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)  # if files remain, the next writer removes them

    def remove_abandoned(self) -> None:
        """Remove the temporary folders of writers that were killed. The caller holds the lock of the root folder."""
        for folder in self.bundles.glob(f"{INCOMING}*"):
            try:
                descriptor = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # published by another process in the meantime
                continue
            if try_lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def already_published(name: str) -> StoreError:
    return StoreError(f"{name}: expected a new version, found one already published; build again")


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; first wait until no other process holds it. The lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the lock of a file if it is free; return whether the lock was taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
