"""Retention: which versions of a store are kept, and the removal of all others.

A version is kept if it is one of the newest, current, the candidate, the target of a rollback, or open in a replica.
All conditions are read again right before a version is removed, because another process may activate a version
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from recollect.service.store.store import Store


class Pruned(NamedTuple):
    """A version that was removed, or that would be removed."""

    version: str
    size_bytes: int


def prune(store: Store, keep: int, in_use: Callable[[], Collection[str]], dry_run: bool = False) -> Iterator[Pruned]:
    """Remove old versions, the oldest first. Yield each version after its removal.

    Args:
        store: The store.
        keep: Number of the newest versions that are kept in any case.
        in_use: Function that returns the versions that replicas have open.
        dry_run: Remove nothing; yield the versions that would be removed.

    Raises:
        StoreError: If the store cannot be read or written.
        RedisError: If `in_use` cannot read the reports of the replicas.
    """
    store.require()
    for version in store.versions()[:-keep]:

        def is_unused(version: str = version) -> bool:
            return version not in {*store.desired(), *in_use()}

        if not is_unused():
            continue
        size_bytes = store.size_bytes(version)
        if dry_run or store.remove(version, is_unused):
            yield Pruned(version, size_bytes)
    if not dry_run:
        store.remove_abandoned({*store.desired(), *in_use()})
