"""The keys and instances of one version in Milvus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.instances import Instances
from recollect.service.milvus.collection import KeyCollection
from recollect.service.milvus.connection import Connection
from recollect.service.milvus.instances import InstanceCollection, instances_of
from recollect.service.settings import EngineSettings


@runtime_checkable
class EngineSearch(Protocol):
    """A search for keys of one kind."""

    @property
    def keys(self) -> int:
        """Number of keys."""

    def search(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        """The similarities and rows of the nearest keys of each query."""

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        """The similarities of a query to the given keys."""


@dataclass(frozen=True, eq=False)
class EngineKeys:
    """The open collections of one version.

    Attributes:
        of_instances: The keys of the instances.
        of_labels: The keys of the labels.
        instances: The instances.
    """

    connection: Connection
    of_instances: EngineSearch
    of_labels: EngineSearch
    instances: Instances

    @classmethod
    def open(cls, bundle: Bundle, settings: EngineSettings) -> EngineKeys:
        """Connect to Milvus, check the collections of a bundle, and load them.

        Raises:
            SettingsError: If no URI is given, or pymilvus is not installed.
            BundleError: If a collection is missing, or is not the one that the manifest describes.
            EngineError: If Milvus does not answer.
        """
        manifest = bundle.manifest
        engine, index = manifest.engine, manifest.index
        assert engine is not None, "the manifest names an engine"
        connection = Connection(settings)
        try:
            collection = KeyCollection(connection, engine.instances, index.instances, manifest.dim)
            labels = KeyCollection(connection, engine.labels, index.labels, manifest.dim)
        except BaseException:
            connection.close()
            raise
        found = InstanceCollection(collection, manifest.counts.labels)
        return cls(connection, found, labels, instances_of(found, collection, bundle.labels.counts))

    @property
    def problem(self) -> str | None:
        """The reason why searches fail at once; None if Milvus answers."""
        return self.connection.problem

    def close(self) -> None:
        self.connection.close()
