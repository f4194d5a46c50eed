"""The files of a store. A file is created once, under a name that no other file has, and never changes.

So a store needs no lock: of two writers that create the same name, one wins and the other learns it. `FolderFiles`
keeps the files in a folder, also one that several hosts share (NFS). `ObjectFolder` keeps them at a URL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Protocol

from recollect.service.errors import StoreError

# Size limit of a file that is read completely, because a server could send an endless one.
MAX_SMALL_BYTES = 1 << 20
# Names of files that are being written begin like this. A killed writer leaves such a file.
INCOMING = ".incoming-"


class StoreFiles(Protocol):
    """The files of a store. Several threads may use one object.

    Attributes:
        name: The store's name in error messages.
        can_list: Whether `names` works. A plain web server can neither list a folder nor create a file.
    """

    name: str
    can_list: bool

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if no file has this name; return whether it was written.

        The file is complete and durable when this method returns, and no reader sees a part of it.

        Args:
            name: The name, such as `activations/00000042.json`. Missing folders are created.
            content: The content. It must differ from the content that any other writer could write under this name,
                for example by a random token: a writer that got no answer compares it with the stored file.

        Raises:
            StoreError: If the file cannot be written, or the server has no conditional writes. After an error, the file
                may exist or not.
        """

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        """The content of a file; None if the file does not exist.

        Raises:
            StoreError: If the file cannot be read or is larger than `max_bytes`.
        """

    def names(self, folder: str, after: str = "") -> list[str]:
        """The sorted names in a folder that come after the name `after`; an empty list if there is no such folder.

        Files that are being written are left out.

        Raises:
            StoreError: If the folder cannot be listed.
        """

    def delete(self, *names: str) -> None:
        """Delete files; a file that does not exist is not an error.

        Raises:
            StoreError: If a file cannot be deleted.
        """


class FolderFiles:
    """The files of a store in a folder. It needs hard links, which NFS and all usual file systems of Linux have."""

    can_list = True

    def __init__(self, root: Path) -> None:
        self.name = str(root)
        self._root = root

    def create(self, name: str, content: bytes) -> bool:
        path = self._root / name
        temporary = path.with_name(f"{INCOMING}{secrets.token_hex(8)}")
        try:
            _make_folder(path.parent)
            with temporary.open("xb", buffering=0) as file:
                _write(file.fileno(), content)
                os.fsync(file.fileno())
            is_new = _link(temporary, path)
            flush(path.parent)
        except OSError as error:
            raise _unwritable(path, error) from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return is_new

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        path = self._root / name
        try:
            with path.open("rb") as file:
                content = file.read(min(max_bytes, os.fstat(file.fileno()).st_size) + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"{path}: expected a file that can be read, found: {error.strerror}; check the disk and the permissions"
            ) from None
        if len(content) > max_bytes:
            raise StoreError(f"{path}: expected at most {max_bytes:,} bytes, found more; restore the file")
        return content

    def names(self, folder: str, after: str = "") -> list[str]:
        path = self._root / folder
        try:
            found = os.listdir(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(
                f"{path}: expected a folder that can be listed, found: {error.strerror}; check the permissions"
            ) from None
        return sorted(name for name in found if name > after and not name.startswith("."))

    def delete(self, *names: str) -> None:
        for name in names:
            path = self._root / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(
                    f"{path}: expected a file that can be deleted, found: {error.strerror}; check the permissions"
                ) from None


def flush(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
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


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _link(temporary: Path, path: Path) -> bool:
    """Give a written file its name; return False if another file has the name.

    On NFS, the answer to a call can be lost, and the repeated call then finds the name that the first one created.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return temporary.samefile(path)
    return True


def _unwritable(path: Path, error: OSError) -> StoreError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    step = "free some space and try again" if full else "check the disk and the permissions"
    return StoreError(f"{path}: expected a file that can be written, found: {error.strerror}; {step}")
