"""The collections of the versions of a store, which are dropped with their versions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from recollect.service.errors import BundleError, StoreError
from recollect.service.milvus.connection import Connection
from recollect.service.store.store import Store

# The names of all collections that builds create begin with this.
PREFIX = "recollect_"


def collections_of(store: Store) -> dict[str, list[str]]:
    """The collections of each version whose keys are in Milvus."""
    found: dict[str, list[str]] = {}
    for version in store.versions():
        with contextlib.suppress(StoreError, BundleError):  # a broken version is removed without its collections
            if (engine := store.manifest(version).engine) is not None:
                found[version] = [engine.instances, engine.labels]
    return found


def unnamed(connection: Connection, named: Collection[list[str]]) -> list[str]:
    """The collections of no version. An interrupted or present build, or another store, has them."""
    found: set[str] = {name for name in connection.call("list_collections") if name.startswith(PREFIX)}
    return sorted(found.difference(*named))
