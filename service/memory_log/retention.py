"""How far the log of a store goes back, and the removal of the segments that no version of the store needs.

A version needs all entries after its `memory_sequence`. The last segment always stays. The oldest segment is removed
first, so that after an interruption the rest is a log, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from recollect.service.errors import BundleError
from recollect.service.memory_log.group_log import GroupLog
from recollect.service.memory_log.log import segments_of
from recollect.service.memory_log.segments import SegmentFile
from recollect.service.store.store import Store


def prune_log(store: Store, without: Collection[str] = (), dry_run: bool = False) -> Iterator[SegmentFile]:
    """Remove the segments that no version of a store needs. Yield each one after its removal.

    Args:
        store: The store.
        without: Versions that need no entries, because they would be removed.
        dry_run: Remove nothing; yield the segments that would be removed.

    Raises:
        StoreError: If the store cannot be read or written.
        BundleError: If a manifest is broken, so that it is not known which entries its version needs.
    """
    segments = segments_of(store)
    if not segments.listed():
        return
    with segments.exclusive():
        contained, listed = _contained(store, without), segments.listed()
        pairs = zip(listed, listed[1:], strict=False)
        is_unneeded = ((segment, following.first) for segment, following in pairs)
        removable = [*itertools.takewhile(lambda pair: pair[1] <= contained + 1 and pair[0].is_removable, is_unneeded)]
        if removable and not dry_run:
            segments.set_first(removable[-1][1])
        for segment, _ in removable:
            if not dry_run:
                segments.remove(segment.first)
            yield segment


def removed_entries(store: Store) -> int:
    """Sequence number of the last entry that was removed from the log; 0 if it has all entries."""
    return segments_of(store).first() - 1


def last_entry(store: Store) -> int:
    """Sequence number of the last entry of the log; 0 if there is none.

    Raises:
        MemoryLogError, StoreError, OSError: If the log cannot be read.
    """
    log = GroupLog(segments_of(store), removed_entries(store))
    with log.shared():
        log.read(lambda _: None)
    return log.place.sequence


def _contained(store: Store, without: Collection[str]) -> int:
    """Sequence number of the last entry that the bundles of all versions contain."""
    kept = [version for version in store.versions() if version not in without]
    try:
        return min((store.manifest(version).memory_sequence for version in kept), default=0)
    except BundleError as error:
        raise BundleError(f"{error}. The memory log stays as it is; remove this version, or restore it") from None
