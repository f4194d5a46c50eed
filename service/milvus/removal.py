"""Drop the collections of versions that were removed from a store."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from types import TracebackType

from recollect.service.bundle.manifest import Engine
from recollect.service.errors import BundleError, StoreError
from recollect.service.milvus.connection import Connection
from recollect.service.settings import EngineSettings
from recollect.service.store.store import Store

# The names of all collections that builds create begin with this.
PREFIX = "recollect_"


class Removal(AbstractContextManager["Removal"]):
    """Drops the collections of removed versions.

    Args:
        store: The store, before versions are removed.
        settings: The connection to Milvus; used only if the store has versions whose keys are there.

    Raises:
        SettingsError: If the store has such versions, and no URI is given.
        EngineError: If the store has such versions, and Milvus does not answer.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self._engines: dict[str, Engine] = {}
        for version in store.versions():
            with contextlib.suppress(StoreError, BundleError):  # a broken version is removed without its collections
                if (engine := store.manifest(version).engine) is not None:
                    self._engines[version] = engine
        self._connection = Connection(settings) if self._engines else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def drop(self, version: str) -> None:
        """Drop the collections of a version, if it has some.

        Raises:
            EngineError: If Milvus does not answer, or refuses a call. The message names the collection.
        """
        if version in self._engines and self._connection is not None:
            engine = self._engines[version]
            drop(self._connection, [engine.instances.name, engine.labels.name])

    def leftover(self) -> list[str]:
        """The collections of interrupted builds, and of versions that this store does not have.

        Another store, or a build in progress, may use them.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        if self._connection is None:
            return []
        named = {each.name for engine in self._engines.values() for each in (engine.instances, engine.labels)}
        return sorted(name for name in self._connection.collections() if name.startswith(PREFIX) and name not in named)


def drop(connection: Connection, names: list[str]) -> None:
    """Drop the collections that exist.

    Raises:
        EngineError: If Milvus does not answer, or refuses a call.
    """
    for name in names:
        if connection.call("has_collection", name):
            connection.call("drop_collection", name)
