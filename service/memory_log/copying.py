"""Copy the log of a store to another store, or continue an earlier copy."""

from __future__ import annotations

from recollect.service.errors import MemoryLogError
from recollect.service.memory_log.group_log import GroupLog
from recollect.service.memory_log.groups import Group, Place
from recollect.service.memory_log.log import segments_of
from recollect.service.store.store import Store

# Groups are written together until they have this size: an object store gets fewer and larger segments.
_BLOCK_BYTES = 8 << 20


def copy_log(source: Store, target: Store) -> int:
    """Append the groups that the log of the target lacks; return the number of entries.

    The copy is a log after each step. After an interruption, the next call continues it.

    Raises:
        MemoryLogError: If the log of the target is not the beginning of that of the source, or a log is damaged.
        StoreError, OSError: If a log cannot be read or written.
    """
    read, first = _open(source)
    if source.name == target.name or not read.exists:
        return 0
    written, _ = _open(target)
    with written.exclusive():
        if written.exists:
            written.read(lambda _: None)
        else:
            written.begin(Place(first - 1, None))
        if written.place.sequence == first - 1 and written.place.digest is not None:
            read.begin(written.place)  # the first group of the source must follow the last one of the copy
        return _Copy(read, written).run()


def _open(store: Store) -> tuple[GroupLog, int]:
    """The log of a store, and its first segment."""
    segments = segments_of(store)
    first = segments.first()
    return GroupLog(segments, first - 1), first


class _Copy:
    """A copy in progress. The source is read without its lock, so that its writers do not wait.

    Args:
        source: The log to copy, of which nothing was read yet.
        target: The copy, of which all groups were read.
    """

    def __init__(self, source: GroupLog, target: GroupLog) -> None:
        self._source, self._target, self._before = source, target, target.place
        self._is_found = False
        self._block, self._end = bytearray(), target.place

    def run(self) -> int:
        self._source.read(self._take)
        if not (self._is_found or self._is_at_copy(self._source.place)):
            raise self._differs()
        self._write()
        return self._end.sequence - self._before.sequence

    def _take(self, group: Group) -> None:
        self._is_found = self._is_found or self._is_at_copy(self._source.place)
        if group.end.sequence <= self._before.sequence:
            return
        if not self._is_found:
            raise self._differs()
        if len(self._block) + len(group.content) > _BLOCK_BYTES:  # a reader reads at most one largest group at once
            self._write()
        self._block += group.content
        self._end = group.end

    def _is_at_copy(self, place: Place) -> bool:
        """Whether a place of the source is the end of the copy before this copy."""
        return place.sequence == self._before.sequence and (
            place.digest is None or self._before.digest in (None, place.digest)
        )

    def _write(self) -> None:
        if self._block:
            self._target.append(bytes(self._block), self._end)
            self._block.clear()

    def _differs(self) -> MemoryLogError:
        return MemoryLogError(
            f"{self._target.name}: expected the first entries of {self._source.name}, found a log of "
            f"{self._before.sequence:,} entries that has others; copy without --memory-log, or to a store without a log"
        )
