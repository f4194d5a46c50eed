"""Segments of a log in a folder: groups are appended to the last segment, under the lock of the folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from recollect.service.errors import MemoryLogError
from recollect.service.memory_log.segments import FIRST, SegmentFile, first_segment, segment_name, segment_numbers
from recollect.service.store.files import flush

_SEGMENT_BYTES = 64 << 20
# Maximum time of a wait for the lock. A commit takes milliseconds.
_LOCK_SECONDS = 30.0
_LOCK_POLL_SECONDS = 0.001


class FolderSegments:
    """Segments in a folder, with the lock of the folder."""

    max_bytes = _SEGMENT_BYTES

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        try:
            self._create()
        except OSError as error:
            raise self._unwritable(self.name, error) from None
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_SH) if self._folder.exists() else contextlib.nullcontext():
            yield

    def first(self) -> int:
        return first_segment(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else 1

    def is_unchanged(self, segment: int, offset: int, following: int) -> bool:
        return self._size(segment) == offset and not self.has(following)

    def has(self, segment: int) -> bool:
        return self._path(segment).exists()

    def read(self, segment: int, offset: int, max_bytes: int) -> bytes:
        size = self._size(segment)
        if size < offset and self.has(segment):
            raise MemoryLogError(
                f"{self._path(segment)}: expected at least the {offset:,} bytes that were read before, found {size:,}: "
                "another program has shortened the log; restore the file, or restart this process to use what is left"
            )
        if size <= offset:
            return b""
        with self._path(segment).open("rb") as file:
            file.seek(offset)
            return file.read(max_bytes)

    def append(self, segment: int, offset: int, content: bytes) -> bool:
        path = self._path(segment)
        try:
            is_new = not path.exists()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                has_rest = os.fstat(descriptor).st_size > offset
                if has_rest:
                    os.ftruncate(descriptor, offset)
                _write_durably(descriptor, offset, content)
            finally:
                os.close(descriptor)
            if is_new:
                flush(self._folder)
        except OSError as error:
            raise self._unwritable(str(path), error) from None
        return has_rest

    def is_removed(self, segment: int, at_once: bool) -> bool:
        return not self.has(segment)

    def listed(self) -> list[SegmentFile]:
        names = (path.name for path in self._folder.iterdir()) if self._folder.is_dir() else ()
        return [SegmentFile(first, self._size(first), True) for first in segment_numbers(names)]

    def set_first(self, segment: int) -> None:
        path, aside = self._folder / FIRST, self._folder / f".{FIRST}-incoming"
        try:
            aside.write_text(f"{segment}\n", encoding="ascii")
            flush(aside)
            aside.replace(path)
            flush(self._folder)
        except OSError as error:
            raise MemoryLogError(
                f"{path}: expected a file that can be written, found: {error.strerror}; no segment was removed: check "
                "the disk and the permissions"
            ) from None

    def remove(self, segment: int) -> None:
        path = self._path(segment)
        try:
            path.unlink(missing_ok=True)
            flush(self._folder)
        except OSError as error:
            raise MemoryLogError(
                f"{path}: expected a file that can be removed, found: {error.strerror}; check the permissions"
            ) from None

    def _path(self, segment: int) -> Path:
        return self._folder / segment_name(segment)

    def _size(self, segment: int) -> int:
        try:
            return self._path(segment).stat().st_size
        except FileNotFoundError:
            return 0

    def _create(self) -> None:
        """Create the folder durably."""
        missing = [each for each in (self._folder, *self._folder.parents) if not each.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            flush(folder.parent)

    @contextlib.contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while not _try(descriptor, operation):
                if time.monotonic() > until:
                    raise MemoryLogError(
                        f"{self.name}: expected the lock of the log within {_LOCK_SECONDS:g} seconds, but another "
                        "process holds it; find the process with `fuser` and try again"
                    )
                time.sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _unwritable(self, path: str, error: OSError) -> MemoryLogError:
        step = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the disk"
        return MemoryLogError(
            f"{path}: expected a file that can be written, found: {error.strerror}; this write has no effect: "
            f"{step} and try again"
        )


def _try(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_durably(descriptor: int, offset: int, content: bytes) -> None:
    """Write content at the end of a file, and flush it. If this fails, the file keeps its old content."""
    try:
        rest, at = memoryview(content), offset
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # if this fails too, the next writer removes the rest
            os.ftruncate(descriptor, offset)
            os.fsync(descriptor)
        raise
