"""Retention: which versions of a store are kept, and the removal of all others.

A version is kept if it is one of the newest, current, the canary, the target of a rollback, protected, or in use by a
replica. All conditions are read again right before a version is removed, because another process may activate or
protect a version meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from recollect.service.bundle.manifest import is_version
from recollect.service.errors import StoreError, UnknownVersionError
from recollect.service.store.store import Store

_PROTECTED = "PROTECTED"


class Pruned(NamedTuple):
    """A version that was removed, or that would be removed."""

    version: str
    size_bytes: int


def protect(store: Store, version: str) -> None:
    """Protect a published version against `prune`.

    Raises:
        StoreError: If the version is not published, or the store cannot be written to.
    """
    store.require_published(version)
    _change_protected(store, lambda versions: versions | {version})
    try:  # again after the write, because `prune` may have removed the version meanwhile
        store.require_published(version)
    except StoreError:
        _change_protected(store, lambda versions: versions - {version})
        raise


def unprotect(store: Store, version: str) -> None:
    """Remove the protection of a version.

    Raises:
        StoreError: If the version is not protected, or the store cannot be written to.
    """
    before = protected(store)
    if version not in before:
        raise UnknownVersionError(
            f"{store.name}: expected a protected version, found {version!r}; protected: "
            + (", ".join(sorted(before)) or "none")
        )
    _change_protected(store, lambda versions: versions - {version})


def protected(store: Store) -> set[str]:
    """The protected versions."""
    return _parse(store.files.read(_PROTECTED))


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
    for version in store.versions()[:-keep]:

        def is_unused(version: str = version) -> bool:
            return version not in {*_desired(store), *protected(store), *in_use()}

        if not is_unused():
            continue
        size_bytes = store.size_bytes(version)
        if dry_run or store.remove(version, is_unused):
            yield Pruned(version, size_bytes)
    if not dry_run:
        store.remove_abandoned()


def _desired(store: Store) -> set[str]:
    """The current version, the canary, and the version that a rollback makes current."""
    record = store.activation()
    if record is None:
        return set()
    published = set(store.versions())
    before = [version for version in record.previous if version != record.version and version in published]
    canary = [record.canary.version] if record.canary else []
    return {record.version, *canary, *before[-1:]}


def _change_protected(store: Store, change: Callable[[set[str]], set[str]]) -> None:
    with store.files.exclusive():
        store.files.update(
            _PROTECTED, lambda content: "".join(f"{version}\n" for version in sorted(change(_parse(content)))).encode()
        )


def _parse(content: bytes | None) -> set[str]:
    return set(filter(is_version, (content or b"").decode(errors="replace").split()))
