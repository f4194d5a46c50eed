"""How far the log of a store goes back, the removal of commits that no version needs, and copies of the log."""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Collection

from recollect.service.errors import BundleError, MemoryLogError
from recollect.service.memory_log.commits import Commit
from recollect.service.memory_log.log import (
    COMMIT,
    MARKER,
    MAX_COMMIT_BYTES,
    MEMORY,
    commit_name,
    decoded,
    in_parallel,
    numbers,
    removed_up_to,
)
from recollect.service.store.store import Store

# A process with an older knowledge of the log reads the markers; see `log.py`.
_KEPT_SECONDS = 3_600.0


def extent(store: Store) -> tuple[int, int]:
    """The sequence number up to which entries may have been removed from the log, and that of the last entry.

    Both are 0 without a log.

    Raises:
        MemoryLogError, StoreError: If the log cannot be read.
    """
    names = store.files.names(MEMORY)
    commits, removed = numbers(names, COMMIT), removed_up_to(names)
    return removed, max(removed, _read(store, commits[-1]).last) if commits else removed


def has_log(store: Store) -> bool:
    """Whether a store has live entries. At a plain web server, only the first one is looked for."""
    files = store.files
    if files.can_list:
        return bool(files.names(MEMORY))
    return files.read(f"{MEMORY}/{commit_name(1)}", MAX_COMMIT_BYTES) is not None


def prune_log(store: Store, without: Collection[str] = (), dry_run: bool = False) -> int:
    """Remove the commits that the bundles of all versions of a store contain; return their number.

    Commits of the last hour stay, and so does the last one. An interrupted removal is continued by the next call.

    Args:
        store: The store.
        without: Versions that need no entries, because they would be removed.
        dry_run: Remove nothing; return the number of commits that would be removed.

    Raises:
        StoreError: If the store cannot be read or written.
        BundleError: If a manifest is broken, so that it is not known which entries its version needs.
    """
    names = store.files.names(MEMORY)
    commits, markers = numbers(names, COMMIT), numbers(names, MARKER)
    contained, oldest = _contained(store, without), time.time() - _KEPT_SECONDS
    # A commit ends where the next one begins.
    count = bisect.bisect_right([following - 1 for following in commits[1:]], contained)
    count = bisect.bisect_left(commits, True, hi=count, key=lambda first: _read(store, first).seconds > oldest)
    if count and not dry_run:
        last = commits[count] - 1
        if last not in markers:
            _mark(store, last)
        for _ in in_parallel(lambda first: store.files.delete(f"{MEMORY}/{commit_name(first)}"), commits[:count]):
            pass
        store.files.delete(*(f"{MEMORY}/{_marker_name(each)}" for each in markers if each < last))
    return count


def copy_log(source: Store, target: Store) -> int:
    """Copy the commits that the log of the target lacks; return the number of entries.

    The copy is a log after each step. After an interruption, the next call continues it.

    Raises:
        MemoryLogError: If the log of the target is not the beginning of that of the source, or a log is damaged.
        StoreError: If a log cannot be read or written.
    """
    names, copied_names = source.files.names(MEMORY), target.files.names(MEMORY)
    commits, copied = numbers(names, COMMIT), numbers(copied_names, COMMIT)
    if source.name == target.name or not commits:
        return 0
    if copied:
        last = copied[-1]
        if last not in commits or _content(source, last) != _content(target, last):
            raise _differs(source, target, last)
        commits = [first for first in commits if first > last]
    elif removed := removed_up_to(names):
        _mark(target, removed)
    entries = 0
    contents = in_parallel(lambda first: _content(source, first), commits)
    for first, content in zip(commits, contents, strict=True):
        commit = decoded(f"{source.name}/{MEMORY}", first, content)
        if not target.files.create(f"{MEMORY}/{commit_name(first)}", content) and _content(target, first) != content:
            raise _differs(source, target, first)
        entries += len(commit.entries)
    return entries


def _contained(store: Store, without: Collection[str]) -> int:
    """Sequence number of the last entry that the bundles of all versions contain."""
    kept = [version for version in store.versions() if version not in without]
    try:
        return min((store.manifest(version).memory_sequence for version in kept), default=0)
    except BundleError as error:
        raise BundleError(f"{error}. The memory log stays as it is; remove this version, or restore it") from None


def _mark(store: Store, removed: int) -> None:
    """Create the marker that commits up to a sequence number may have been removed."""
    store.files.create(f"{MEMORY}/{_marker_name(removed)}", json.dumps({"seconds": time.time()}).encode())


def _marker_name(removed: int) -> str:
    return commit_name(removed).removesuffix(COMMIT) + MARKER


def _content(store: Store, first: int) -> bytes:
    content = store.files.read(f"{MEMORY}/{commit_name(first)}", MAX_COMMIT_BYTES)
    if content is None:
        raise MemoryLogError(
            f"{store.name}/{MEMORY}/{commit_name(first)}: expected the commit that was listed, found none; another "
            "process prunes the log: try again"
        )
    return content


def _read(store: Store, first: int) -> Commit:
    return decoded(f"{store.name}/{MEMORY}", first, _content(store, first))


def _differs(source: Store, target: Store, first: int) -> MemoryLogError:
    return MemoryLogError(
        f"{target.name}/{MEMORY}/{commit_name(first)}: expected the same commit as in {source.name}, found another one "
        "or one that the source does not have any more; copy without --memory-log, or to a store without a log"
    )
