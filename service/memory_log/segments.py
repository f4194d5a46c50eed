"""The files of a log. A file is a segment; its name is the sequence number of its first entry.

    memory/00000000000000000001.log  00000000000000004713.log  ...

In a folder, groups are appended to the last segment until the segment is large. In an object store, each segment is one
object with one group: an object cannot be appended to, but its creation fails if it exists. In both, a reader computes
the name of the next segment from its last sequence number, so it needs no listing. If older segments were removed, the
file `FIRST` has the number of the first one that is left, for a plain web server, which cannot list a folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from service.errors import LogConflictError, MemoryLogError
from service.storage.bundle_folder import flush
from service.storage.object_folder import ObjectFolder
from service.store.store import Store

_NAME = re.compile(r"[0-9]{20}\.log")
_SEGMENT_BYTES = 64 << 20
# Maximum time of a wait for the lock. A commit takes milliseconds.
_LOCK_SECONDS = 30.0
_LOCK_POLL_SECONDS = 0.001
# An object store has no lock, so newer segments are not removed: no writer waits so long before it appends.
_MIN_AGE_SECONDS = 3_600.0
# Time between two checks whether the last segment of a reader was removed, because a check costs a request.
_CHECK_SECONDS = 60.0

MEMORY = "memory"
_FIRST = "FIRST"


class SegmentFile(NamedTuple):
    """A segment: the sequence number of its first entry, its size, and whether it may be removed now."""

    first: int
    size_bytes: int
    is_removable: bool


class Segments(Protocol):
    """The segments of one log.

    Attributes:
        name: The folder of the log, for messages.
        max_bytes: A segment of this size gets no further group.
    """

    name: str
    max_bytes: int

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Let no other process write or read, if the store has locks.

        Raises:
            MemoryLogError: If the folder cannot be used, or another process holds the lock for too long.
        """

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Let no other process write, if the store has locks: the log then has no group whose write goes on."""

    def first(self) -> int:
        """The first segment, if older ones were removed; otherwise 1."""

    def is_unchanged(self, segment: int, offset: int, following: int) -> bool:
        """Whether it is certain that a segment ends at an offset, and that the segment `following` does not exist."""

    def has(self, segment: int) -> bool:
        """Whether a segment exists."""

    def read(self, segment: int, offset: int, max_bytes: int) -> bytes:
        """The bytes of a segment from an offset on; empty if there are none.

        Raises:
            MemoryLogError: If the segment is shorter than the offset.
        """

    def is_removed(self, segment: int, at_once: bool) -> bool:
        """Whether a segment that existed was removed. Without `at_once`, the answer can be a minute late."""

    def listed(self) -> list[SegmentFile]:
        """All segments, the oldest first."""

    def set_first(self, segment: int) -> None:
        """Write durably that no reader needs the segments before this one.

        Raises:
            MemoryLogError, StoreError: If the file cannot be written.
        """

    def remove(self, segment: int) -> None:
        """Remove a segment durably.

        Raises:
            MemoryLogError, StoreError: If it cannot be removed.
        """

    def append(self, segment: int, offset: int, content: bytes) -> bool:
        """Write content durably at an offset of a segment, and remove other bytes after the offset.

        Returns:
            Whether other bytes were removed.

        Raises:
            LogConflictError: If another process has written there, and the store has no locks.
            MemoryLogError, StoreError: If the content cannot be written. The segment then ends at the offset.
        """


def segment_name(segment: int) -> str:
    return f"{segment:020}.log"


def segments_of(store: Store) -> Segments:
    """The segments of the log of a store."""
    files = store.files
    return ObjectSegments(files, MEMORY) if isinstance(files, ObjectFolder) else FolderSegments(store.root / MEMORY)


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name[:-4]) for name in names if _NAME.fullmatch(name))


def _first(names: Iterable[str]) -> int:
    return next(iter(_numbers(names)), 1)


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
        return _first(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else 1

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
        return [SegmentFile(first, self._size(first), True) for first in _numbers(names)]

    def set_first(self, segment: int) -> None:
        path, aside = self._folder / _FIRST, self._folder / f".{_FIRST}-incoming"
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


class ObjectSegments:
    """Segments in an object store. Each segment has one group, and is written once.

    Args:
        remote: The folder of the store.
        folder: The folder of the log in the store.
    """

    max_bytes = 0

    def __init__(self, remote: ObjectFolder, folder: str) -> None:
        self.name = f"{remote.name}/{folder}"
        self._remote, self._folder = remote, folder
        # A plain web server may serve a store's folder, in which other processes append to the last segment.
        self._grows = remote.name.startswith("http")
        self._checked = time.monotonic()

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def shared(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def first(self) -> int:
        if self._grows:  # a plain web server cannot list a folder
            content = self._remote.read(f"{self._folder}/{_FIRST}") or b"1"
            return max(1, int(content[:20])) if content[:20].strip().isdigit() else 1
        return 1 if self.has(1) else _first(self._remote.files(self._folder))

    def is_unchanged(self, segment: int, offset: int, following: int) -> bool:
        return False  # the question would cost a request, as reading does

    def has(self, segment: int) -> bool:
        return self._remote.has(self._path(segment))

    def read(self, segment: int, offset: int, max_bytes: int) -> bytes:
        path = self._path(segment)
        if offset and not (self._grows and (self._remote.size_bytes(path) or 0) > offset):
            return b""
        return (self._remote.read(path, offset + max_bytes) or b"")[offset:]

    def is_removed(self, segment: int, at_once: bool) -> bool:
        if not at_once and time.monotonic() < self._checked + _CHECK_SECONDS:
            return False
        self._checked = time.monotonic()
        return not self.has(segment)

    def listed(self) -> list[SegmentFile]:
        files, before = self._remote.files(self._folder), time.time() - _MIN_AGE_SECONDS
        found = ((first, files[segment_name(first)]) for first in _numbers(files))
        return [SegmentFile(first, file.size_bytes, file.modified.timestamp() < before) for first, file in found]

    def set_first(self, segment: int) -> None:
        self._remote.write(f"{self._folder}/{_FIRST}", f"{segment}\n".encode())

    def remove(self, segment: int) -> None:
        self._remote.delete(self._path(segment))

    def append(self, segment: int, offset: int, content: bytes) -> bool:
        path = self._path(segment)
        if not self._remote.create(path, content) and not self._is(path, content):
            raise LogConflictError(f"{self.name}: other processes write to the log at the same time; try again later")
        return False

    def _is(self, path: str, content: bytes) -> bool:
        """Whether a segment has this content: obstore tries again if the answer to its first attempt is lost."""
        return self._remote.size_bytes(path) == len(content) and self._remote.read(path, len(content)) == content

    def _path(self, segment: int) -> str:
        return f"{self._folder}/{segment_name(segment)}"


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
