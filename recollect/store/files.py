"""The files of a store. A file is created once, under a name that no other file has, and never changes.

So a store needs no lock: of two writers that create the same name, one wins and the other learns it. `FolderFiles`
keeps the files in a folder, also one that several hosts share (NFS). `ObjectFolder` keeps them at a URL.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from recollect.core.errors import StoreError

# Size limit of a file that is read completely, because a server could send an endless one.
MAX_SMALL_BYTES = 1 << 20
# Names of files that are being written begin like this. A killed writer leaves such a file.
INCOMING = ".incoming-"
# A temporary file, or a bundle without its manifest, is being written while its last write is younger than this. The
# upload of one file ends after a day at the latest.
MAX_WRITE_AGE = timedelta(days=2)
_PIECE_BYTES = 8 << 20
# The ioctl request FICLONE of Linux: let a file share the disk blocks of another file. A write to one of the two files
# then copies the blocks, so the other file keeps its content.
_FICLONE = 0x40049409


class FolderStatus(NamedTuple):
    size_bytes: int
    modified: datetime


class FolderFiles:
    """The files of a store in a folder, which can be on NFS: it needs hard links. Several threads may use one object.

    `ObjectFolder` has the same methods. A method raises a StoreError if the store cannot be read or written.

    Attributes:
        can_list: Whether `names` works. A plain web server can neither list a folder nor create a file.
    """

    can_list = True

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if no file has this name; return whether it was written.

        The file is complete and durable when this method returns, and no reader sees a part of it. After a StoreError,
        the file may exist or not.

        Args:
            content: The content. It must differ from the content that any other writer could write under this name,
                for example by a random token: a writer that got no answer compares it with the stored file.
        """
        path = self._root / name
        with file_errors(path, "written"), temporary_path(path) as temporary:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            is_new = _link(temporary, path)
            flush(path.parent)
        return is_new

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        """The content of a file; None if the file does not exist."""
        path = self._root / name
        try:
            with (
                file_errors(path, "read"),
                open_file(path) as descriptor,
                open(descriptor, "rb", closefd=False) as file,
            ):
                content = file.read(min(max_bytes, os.fstat(descriptor).st_size) + 1)
        except FileNotFoundError:
            return None
        if len(content) > max_bytes:
            raise StoreError(f"{path}: expected at most {max_bytes:,} bytes, found more; restore the file")
        return content

    def names(self, folder: str, after: str = "") -> list[str]:
        """The sorted names in a folder that come after the name `after`; an empty list if there is no such folder.

        Names that begin with a dot are left out: such files are being written.
        """
        path = self._root / folder
        try:
            with file_errors(path, "listed"):
                listed = os.listdir(path)
        except FileNotFoundError:
            return []
        return sorted(name for name in listed if name > after and not name.startswith("."))

    def delete(self, *names: str) -> None:
        """Delete files; a file that does not exist is not an error."""
        for name in names:
            with file_errors(self._root / name, "deleted"), contextlib.suppress(FileNotFoundError):
                (self._root / name).unlink()

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file of any size, in pieces of a few megabytes. The file must exist."""
        with _open_existing(self._root / name) as descriptor:
            while piece := os.read(descriptor, _PIECE_BYTES):
                yield piece

    def clone(self, name: str, target: int) -> bool:
        """Let an empty file on this machine share the disk blocks of a file; return False if this is not possible.

        `target` is the descriptor of the empty file, open for writing.
        """
        with _open_existing(self._root / name) as descriptor:
            try:
                fcntl.ioctl(target, _FICLONE, descriptor)
            except OSError:
                return False
            return True

    def require_writable(self) -> None:
        """Check that files can be created."""
        with file_errors(self._root, "written"), temporary_path(self._root / "check") as temporary:
            temporary.touch()

    def upload(self, local: Path, name: str, keep: bool = True) -> None:
        """Write a file of any size, or replace it. It appears complete or not at all.

        Unless `keep` is true, the local file may be moved, which needs no second disk space.
        """
        path = self._root / name
        with file_errors(path, "written"), temporary_path(path) as temporary:
            if keep:
                shutil.copyfile(local, temporary)
            else:
                local.rename(temporary)
            flush(temporary)
            temporary.replace(path)
            flush(path.parent)

    def status(self, folder: str) -> FolderStatus:
        """The size of the files in a folder, and the time of the last write to it."""
        path = self._root / folder
        try:
            with file_errors(path, "listed"):
                return folder_status(path)
        except FileNotFoundError:
            return FolderStatus(0, datetime.fromtimestamp(0, UTC))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its files, as far as it exists."""
        path = self._root / folder
        with file_errors(path, "deleted"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def remove_abandoned_files(root: Path) -> None:
    """Remove the temporary files and folders of a store to which nobody has written for two days."""
    oldest = datetime.now(UTC) - MAX_WRITE_AGE
    for path in root.glob(f"*/{INCOMING}*"):
        with contextlib.suppress(FileNotFoundError):  # its writer has finished
            if folder_status(path).modified < oldest:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def folder_status(path: Path) -> FolderStatus:
    """The size and the last change of a file, or of a folder and all files in it."""
    statuses = [path.lstat()]
    if path.is_dir():
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed at this moment
                    statuses.append(entry.stat(follow_symlinks=False))
    size_bytes = sum(status.st_size for status in statuses if stat.S_ISREG(status.st_mode))
    return FolderStatus(size_bytes, datetime.fromtimestamp(max(status.st_mtime for status in statuses), UTC))


def flush(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


@contextlib.contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """A new name that nobody can guess, in the folder of a path, which is created. Nothing stays under this name."""
    _make_folder(path.parent)
    temporary = path.with_name(f"{INCOMING}{secrets.token_hex(8)}")
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[int]:
    """Open a file for reading. Another program may have put a link or a pipe there, which is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(f"{path}: expected a file, found a link; restore the file") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(f"{path}: expected a file, found a folder, a device or a pipe; restore the file")
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_existing(path: Path) -> Iterator[int]:
    """As `open_file`, for a file of a bundle; every error is a StoreError."""
    try:
        with file_errors(path, "read"), open_file(path) as descriptor:
            yield descriptor
    except FileNotFoundError:
        raise StoreError(f"{path}: expected a file of the bundle, found none; build it again") from None


def _link(temporary: Path, path: Path) -> bool:
    """Give a written file its name; return False if another file has the name.

    On NFS, the answer to a call can be lost, and the repeated call then finds the name that the first one created.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return temporary.samefile(path)
    return True


@contextlib.contextmanager
def file_errors(path: Path, verb: str) -> Iterator[None]:
    """Convert OSError to StoreError, but not FileNotFoundError while reading or listing."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and verb in ("read", "listed"):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        step = "free some space and try again" if full else "check the disk and the permissions"
        raise StoreError(f"{path}: expected a path that can be {verb}, found: {error.strerror}; {step}") from None
