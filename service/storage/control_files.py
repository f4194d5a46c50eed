"""The small files of a store that say which version is current. `ObjectFolder` has the same methods for a URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from recollect.service.errors import StoreError
from recollect.service.storage.bundle_folder import folder_lock
from recollect.service.store import files
from recollect.service.store.files import INCOMING, StoreFiles, flush

# Size limit of the log, because a server could send an endless one.
MAX_LOG_BYTES = 64 << 20


class ControlFiles(StoreFiles, Protocol):
    """Reads and replaces small files of a store. Every write is complete or has no effect."""

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a file by a change of its content, so that no write of another process is lost.

        Args:
            name: The file.
            change: Returns the new content for the old content, which is None if the file does not exist. It is called
                again if another process wrote the file meanwhile.

        Raises:
            StoreError, OSError: If the file cannot be read or written.
        """

    def append(self, name: str, missing: Callable[[bytes | None], bytes]) -> None:
        """Append to a file. `missing` returns the bytes to append to the old content, or no bytes.

        Raises:
            StoreError, OSError: If the file cannot be read or written.
        """

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Let only one process at a time call `update` and `append`, if the store has locks."""


class FolderFiles(files.FolderFiles):
    """The small files of a store in a folder."""

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        self._replace(self._root / name, change(self.read(name)))

    def append(self, name: str, missing: Callable[[bytes | None], bytes]) -> None:
        if content := missing(self.read(name)):
            _append(self._root / name, content)

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        return folder_lock(self._root)

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a temporary file, flush it and rename it, so that readers see either the old or the new content."""
        aside = path.with_name(f".{path.name}{INCOMING}")  # a file that a killed process left is overwritten
        try:
            aside.write_bytes(content)
            flush(aside)
            aside.replace(path)
            flush(path.parent)
        except OSError as error:
            raise _unwritable(path, error) from None
        finally:
            aside.unlink(missing_ok=True)


def _append(path: Path, content: bytes) -> None:
    """Append to a file and flush it. If the disk is full, the file keeps its old content."""
    try:
        with path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                written = file.write(content)
                if written < len(content):  # the disk is almost full; the next write raises the error
                    file.write(content[written:])
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), size)
                raise
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path}: expected a file that can be written, found: {error.strerror}; check the disk and the permissions"
    )
