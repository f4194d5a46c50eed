"""Retention: which versions of a store are kept, and the removal of all others.

    store/   protected/<version>     an empty file: `recollect prune` keeps the version

A version is kept if it is one of the newest, current, the target of a rollback, protected, or in use by a replica. All
conditions are read again right before a version is removed, because another process may activate or protect a version
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from service.bundle.manifest import check_version, is_version
from service.errors import StoreError, UnknownVersionError
from service.store.store import Store

_FOLDER = "protected"


class Pruned(NamedTuple):
    """A version that was removed, or that would be removed."""

    version: str
    size_bytes: int


def protect(store: Store, version: str) -> None:
    """Protect a published version against `prune`.

    Raises:
        StoreError: If the version is not published, or the store cannot be written to.
    """
    with store.lock():
        store.files.write(_mark(version), b"")
        try:  # after the write, because `prune` of a store at a URL takes no lock
            store.require_published(version)
        except StoreError:
            store.files.delete(_mark(version))
            raise


def unprotect(store: Store, version: str) -> None:
    """Remove the protection of a version.

    Raises:
        StoreError: If the version is not protected, or the store cannot be written to.
    """
    if version not in protected(store):
        raise UnknownVersionError(
            f"{store.name}: expected a protected version, found {version!r}; protected: "
            + (", ".join(sorted(protected(store))) or "none")
        )
    store.files.delete(_mark(version))


def protected(store: Store) -> set[str]:
    """The protected versions."""
    return set(filter(is_version, store.files.names(_FOLDER)))


def prune(store: Store, keep: int, in_use: Callable[[], Collection[str]], dry_run: bool = False) -> Iterator[Pruned]:
    """Remove old versions, the oldest first. Yield each version after its removal.

    Args:
        store: The store.
        keep: Number of the newest versions that are kept in any case.
        in_use: Function that returns the versions that replicas serve or open.
        dry_run: Remove nothing; yield the versions that would be removed.

    Raises:
        StoreError: If the store cannot be read or written.
        RedisError: If `in_use` cannot read the reports of the replicas.
    """
    store.require()
    versions = store.versions()
    for version in versions[:-keep]:

        def is_unused(version: str = version) -> bool:
            return version not in {*store.desired_versions(), *protected(store), *in_use()}

        if not is_unused():
            continue
        size_bytes = store.size_bytes(version)
        if dry_run or store.remove(version, is_unused):
            yield Pruned(version, size_bytes)
    if not dry_run:
        store.remove_abandoned()


def _mark(version: str) -> str:
    return f"{_FOLDER}/{check_version(version)}"
