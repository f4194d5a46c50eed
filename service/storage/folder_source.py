"""The files of a store in a folder, read without trust: other programs can write to the folder at any time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from recollect.service.bundle.files import read_small, require_file

_MAX_SMALL_BYTES = 1 << 20
_PIECE_BYTES = 8 << 20
# The ioctl request FICLONE of Linux: let a file share the disk blocks of another file. A write to one of the two files
# then copies the blocks, so the other file keeps its content.
_FICLONE = 0x40049409


class FolderSource:
    """Reads the files of a store's folder.

    Attributes:
        name: The folder, for error messages.
    """

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if the file does not exist.

        Raises:
            BundleError: If the file is a link, a folder or a device, or is larger than 1 MiB.
        """
        path = self._root / name
        return read_small(path, _MAX_SMALL_BYTES) if os.path.lexists(path) else None

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file in pieces of a few megabytes.

        Raises:
            BundleError: If the file is missing, or is a link, a folder or a device.
        """
        with self._open(name) as descriptor:
            while piece := os.read(descriptor, _PIECE_BYTES):
                yield piece

    def clone(self, name: str, target: int) -> bool:
        """Let an empty file share the disk blocks of a file; return whether the file systems can do this.

        Args:
            name: The file.
            target: File descriptor of the empty file, open for writing.

        Raises:
            BundleError: If the file is missing, or is a link, a folder or a device.
        """
        with self._open(name) as descriptor:
            try:
                fcntl.ioctl(target, _FICLONE, descriptor)
            except OSError:
                return False
            return True

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[int]:
        path = self._root / name
        require_file(path)
        # Another program can replace the file after the check: never follow a link, and never wait for a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                require_file(path)
            yield descriptor
        finally:
            os.close(descriptor)
