"""Segments of a log in an object store: each segment is an object with one group, and is written once."""

from __future__ import annotations

import contextlib
import time

from recollect.service.errors import LogConflictError
from recollect.service.memory_log.segments import FIRST, SegmentFile, first_segment, segment_name, segment_numbers
from recollect.service.storage.object_folder import ObjectFolder

# An object store has no lock, so newer segments are not removed: no writer waits so long before it appends.
_MIN_AGE_SECONDS = 3_600.0
# Time between two checks whether the last segment of a reader was removed, because a check costs a request.
_CHECK_SECONDS = 60.0


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
            content = self._remote.read(f"{self._folder}/{FIRST}") or b"1"
            return max(1, int(content[:20])) if content[:20].strip().isdigit() else 1
        return 1 if self.has(1) else first_segment(self._remote.files(self._folder))

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
        found = ((first, files[segment_name(first)]) for first in segment_numbers(files))
        return [SegmentFile(first, file.size_bytes, file.modified.timestamp() < before) for first, file in found]

    def set_first(self, segment: int) -> None:
        self._remote.write(f"{self._folder}/{FIRST}", f"{segment}\n".encode())

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
