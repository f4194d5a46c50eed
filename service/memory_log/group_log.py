"""The groups of a log, in order: reads and verifies new ones, and appends groups that are encoded already.

An interrupted write leaves the beginning of a group at the end of the last segment. Readers ignore it, and the next
append replaces it. Any other damage is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import structlog

from recollect.service.errors import MemoryLogError
from recollect.service.memory_log.groups import MAX_GROUP_BYTES, NO_DIGEST, Group, Place, read_group
from recollect.service.memory_log.segments import Segments, segment_name

log = structlog.get_logger(__name__)


class GroupLog:
    """The groups of a log. One thread at a time uses an object.

    Args:
        segments: The files of the log.
        after: The log must have all entries after this sequence number.

    Attributes:
        name: The folder of the log, for messages.
        place: The place after the last group that was read or appended.
        size_bytes: Size of all these groups.
    """

    def __init__(self, segments: Segments, after: int) -> None:
        self.name, self.place, self.size_bytes = segments.name, Place(0, NO_DIGEST), 0
        self._segments, self._after = segments, after
        self._segment, self._offset = 0, 0

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Let no other process write, if the store has locks."""
        return self._segments.shared()

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Let no other process write or read, if the store has locks."""
        return self._segments.exclusive()

    @property
    def exists(self) -> bool:
        """Whether the log has segments."""
        return self._segments.has(self._segments.first())

    @property
    def is_unchanged(self) -> bool:
        """Whether it is certain that there are no new groups. In a folder, this costs two `stat` calls."""
        following = self.place.sequence + 1
        return bool(self._segment) and self._segments.is_unchanged(self._segment, self._offset, following)

    def require_writable(self) -> None:
        """Check that this process may append; see `MemoryLog.require_writable`."""
        if self.place.sequence < self._after:
            raise self._foreign()

    def read(self, take: Callable[[Group], None]) -> None:
        """Read all new groups. The caller holds a lock.

        Args:
            take: Called with each group, before `place` moves behind it. A ValueError means that the group is damaged.

        Raises:
            MemoryLogError: If the log is damaged, or lacks entries.
            StoreError, OSError: If the log cannot be read.
        """
        if is_new := not self._segment:
            self._segment = self._segments.first()
            if self._segment > self._after + 1:
                removed = f"{self._after + 1} to {self._segment - 1}"
                raise MemoryLogError(
                    f"{self.name}: expected all entries after {self._after}, found that entries {removed} were "
                    "removed; serve a newer version"
                )
            if self._segment > 1:
                self.place = Place(self._segment - 1, None)
        while True:
            content = memoryview(self._segments.read(self._segment, self._offset, MAX_GROUP_BYTES))
            at = self._take(content, take)
            if at and at < len(content):  # there were more bytes than those of the largest group
                continue
            following = self.place.sequence + 1
            if following == self._segment or not self._segments.has(following):
                if is_new and not self.size_bytes and self._segments.first() > self._segment:
                    self._segment, self.place = 0, Place(0, NO_DIGEST)  # the segment was removed meanwhile
                    return self.read(take)
                if 0 < self.place.sequence < self._after:
                    raise self._foreign()
                self._require_present(at_once=False)
                return None
            if at < len(content):
                raise self._damaged("expected the end of the segment, because another one follows, found more bytes")
            self._segment, self._offset = following, 0

    def begin(self, place: Place) -> None:
        """Let a log of which nothing was read begin at a place, with a new segment."""
        self._segment, self.place = place.sequence + 1, place

    def append(self, content: bytes, end: Place) -> None:
        """Append bytes that begin at `place` and end at a place. They are durable when this method returns.

        Raises:
            LogConflictError, MemoryLogError, StoreError: See `Segments.append`. Then the log does not change.
        """
        self._require_present(at_once=True)
        if self._offset and self._offset >= self._segments.max_bytes:
            segment, offset = self.place.sequence + 1, 0
        else:
            segment, offset = self._segment, self._offset
        if self._segments.append(segment, offset, content):
            log.warning(
                "memory_log_repaired",
                file=f"{self.name}/{segment_name(segment)}",
                offset=offset,
                reason="an interrupted write, which was never acknowledged, was removed",
            )
        self._segment, self._offset = segment, offset
        self._advance(len(content), end)

    def _take(self, content: memoryview, take: Callable[[Group], None]) -> int:
        """Read all complete groups; return the number of bytes that were read."""
        at = 0
        while at < len(content):
            try:
                group = read_group(content[at:], self.place)
                if group is None:
                    break
                take(group)
            except ValueError as error:
                raise self._damaged(str(error)) from None
            self._advance(len(group.content), group.end)
            at += len(group.content)
        return at

    def _advance(self, size: int, end: Place) -> None:
        self._offset += size
        self.size_bytes += size
        self.place = end

    def _require_present(self, at_once: bool) -> None:
        """Check that the last segment was not removed."""
        if not (self.place.sequence and self._offset and self._segments.is_removed(self._segment, at_once)):
            return
        if self._segments.first() > self.place.sequence:
            raise MemoryLogError(
                f"{self.name}: expected the entries after {self.place.sequence:,}, found that older segments were "
                "removed by `recollect prune --memory-log` while this process was away; activate a newer version, or "
                "restart this process"
            )
        raise MemoryLogError(
            f"{self.name}/{segment_name(self._segment)}: expected the segment that was read before, found none: "
            "another program has shortened the log; restore the file, or restart this process to use what is left"
        )

    def _where(self) -> str:
        return f"{self.name}/{segment_name(self._segment)}: byte {self._offset:,}"

    def _foreign(self) -> MemoryLogError:
        """A new entry would get the number of one that the bundle contains, and would be skipped later."""
        return MemoryLogError(
            f"{self.name}: expected the log whose first {self._after:,} entries the version contains, found a log of "
            f"{self.place.sequence:,} entries; copy the log from the store in which the version was built with "
            "`recollect copy`"
        )

    def _damaged(self, reason: str) -> MemoryLogError:
        return MemoryLogError(
            f"{self._where()}: {reason}; the log is damaged: restore the file from a copy, or keep only the entries "
            f"before this byte with `truncate -s {self._offset}`"
        )
