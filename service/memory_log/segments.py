"""The files of a log. A file is a segment; its name is the sequence number of its first entry.

    memory/00000000000000000001.log  00000000000000004713.log  ...

In a folder, groups are appended to the last segment until the segment is large. In an object store, each segment is one
object with one group: an object cannot be appended to, but its creation fails if it exists. In both, a reader computes
the name of the next segment from its last sequence number, so it needs no listing. If older segments were removed, the
file `FIRST` has the number of the first one that is left, for a plain web server, which cannot list a folder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

_NAME = re.compile(r"[0-9]{20}\.log")

# The folder of the log in a store, and the file with the number of its first segment.
MEMORY, FIRST = "memory", "FIRST"


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


def segment_numbers(names: Iterable[str]) -> list[int]:
    """The segments among some files, the oldest first."""
    return sorted(int(name[:-4]) for name in names if _NAME.fullmatch(name))


def first_segment(names: Iterable[str]) -> int:
    """The first segment among some files; 1 if there is none."""
    return next(iter(segment_numbers(names)), 1)
