"""Drop the collections of versions that are removed from a store."""

from __future__ import annotations

import contextlib

from recollect.service.errors import BundleError, StoreError
from recollect.service.milvus.connection import Connection
from recollect.service.settings import EngineSettings
from recollect.service.store.store import Store

# The names of all collections that builds create begin with this.
PREFIX = "recollect_"


class Removal:
    """Drops the collections of removed versions. It is created before versions are removed.

    Raises:
        SettingsError: If the store has versions whose keys are in Milvus, and no URI is given.
        EngineError: If the store has such versions, and Milvus does not answer, or refuses a call.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self._collections: dict[str, list[str]] = {}
        for version in store.versions():
            with contextlib.suppress(StoreError, BundleError):  # a broken version is removed without its collections
                if (engine := store.manifest(version).engine) is not None:
                    self._collections[version] = [engine.instances, engine.labels]
        self._connection = Connection(settings) if self._collections else None

    def drop(self, version: str) -> None:
        """Drop the collections of a version, if it has some."""
        if self._connection is not None:
            self._connection.drop(*self._collections.get(version, []))

    def leftover(self) -> list[str]:
        """The collections of no version of the store. An interrupted or present build or another store has them."""
        if self._connection is None:
            return []
        found: set[str] = {name for name in self._connection.call("list_collections") if name.startswith(PREFIX)}
        return sorted(found.difference(*self._collections.values()))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
