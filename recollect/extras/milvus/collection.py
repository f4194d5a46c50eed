"""A collection of keys in Milvus, which does not change after its version was published."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Int

from recollect.core.bundle.manifest import Engine, IndexInfo, Manifest
from recollect.core.errors import BundleError, EngineError, QueryError
from recollect.core.neighbours import Neighbours
from recollect.core.search.searcher import Searcher
from recollect.core.settings import EngineSettings
from recollect.core.system.console import print_status
from recollect.extras.milvus.connection import PREFIX, Connection

# The fields: the number of the key, which is the primary key, and its vector.
ROW, VECTOR = "row", "vector"
# Milvus's names for the search effort of a kind of index.
_EFFORTS = {"ivf": "nprobe", "hnsw": "ef", "diskann": "search_list"}
# Milvus returns at most this number of hits for a query.
MOST_HITS = 16_384
# Limits of one call: its queries, its hits, and its rows that are read.
_CALL_QUERIES, _CALL_HITS, _CALL_ROWS = 1_024, 1 << 20, 2_048


class KeyCollection:
    """The keys of one kind in Milvus, which searches them (see `Keys` in recollect/core/search/searcher.py).

    Attributes:
        info: The entry in the manifest: the index, its number of keys, and its search effort.
        lists: Number of inverted lists of a segment; 0 if the index has none.

    Raises:
        BundleError: If Milvus has no such collection, or it has another number of dimensions or rows.
        EngineError: If Milvus does not answer.
    """

    cpu_reason = ""

    def __init__(self, connection: Connection, name: str, info: IndexInfo, dim: int) -> None:
        self.keys, self.info, self._connection, self._name, self._dim = info.keys, info, connection, name, dim
        self._title = f"{connection.name}: {name}"
        if not connection.call("has_collection", name):
            raise BundleError(f"{self._title}: expected a collection, found none; check --engine-uri, or build again")
        connection.load(name)
        fields = {field["name"]: field for field in connection.call("describe_collection", name)["fields"]}
        (counted,) = connection.call("query", name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        found = int(counted["count(*)"]), int(fields.get(VECTOR, {}).get("params", {}).get("dim", 0))
        if found != (self.keys, dim):
            raise BundleError(
                f"{self._title}: expected {self.keys:,} rows of {dim} dimensions, as in the manifest, found "
                f"{found[0]:,} of {found[1]}; build the bundle again"
            )
        self.lists = int(connection.call("describe_index", name, index_name=VECTOR).get("nlist", 0))

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        top_b = min(top_b, self.keys, MOST_HITS)
        similarities = np.full((len(vectors), top_b), -np.inf, dtype=np.float32)
        rows = np.full((len(vectors), top_b), -1, dtype=np.int64)
        step = min(_CALL_QUERIES, _CALL_HITS // top_b)
        for start in range(0, len(vectors), step):
            found = self._connection.call(
                "search",
                self._name,
                data=np.ascontiguousarray(vectors[start : start + step], dtype=np.float32),
                anns_field=VECTOR,
                limit=top_b,
                search_params={"metric_type": "IP", "params": self._parameters(top_b)},
            )
            for query, hits in enumerate(found, start):
                similarities[query, : len(hits)], rows[query, : len(hits)] = hits.distances, hits.ids
        if rows.max(initial=-1) >= self.keys:
            raise self._changed(f"rows below {self.keys:,}, found {rows.max():,}")
        return Neighbours(similarities, rows)

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        """The similarities of a query to the given keys, from the vectors that Milvus stores.

        Raises:
            QueryError: If there are too many keys to read their vectors for one query.
        """
        if len(keys) > MOST_HITS:
            raise QueryError(
                f"allow, deny: expected at most {MOST_HITS:,} keys in Milvus that vote for the admitted labels, found "
                f"{len(keys):,}; allow fewer labels, or set a smaller top_k"
            )
        return np.asarray(np.einsum("kd,d->k", self.vectors(keys), vector))

    def vectors(self, rows: Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        """The vectors of some rows, in rising order without duplicates.

        Raises:
            EngineError: If Milvus does not answer, or a row is missing.
        """
        found = np.empty((len(rows), self._dim), dtype=np.float32)
        for start in range(0, len(rows), _CALL_ROWS):
            block = rows[start : start + _CALL_ROWS]
            filter_ = f"{ROW} in {block.tolist()}"
            hits = self._connection.call("query", self._name, filter=filter_, output_fields=[VECTOR], limit=_CALL_ROWS)
            if len(hits) < len(block):
                raise self._changed(f"{len(block):,} rows, found {len(hits):,}")
            found[start + np.searchsorted(block, [hit[ROW] for hit in hits])] = [hit[VECTOR] for hit in hits]
        return found

    def at(self, info: IndexInfo) -> KeyCollection:
        """The same collection with another search effort."""
        changed = copy.copy(self)
        changed.info = info
        return changed

    def _parameters(self, top_b: int) -> dict[str, int]:
        """The search effort as Milvus's parameter. All keys need all inverted lists; a graph visits `top_b` keys."""
        if self.info.kind == "flat":
            return {}
        least = math.ceil(self.lists * top_b / self.keys) if self.info.kind == "ivf" else top_b
        return {_EFFORTS[self.info.kind]: max(self.info.effort, least)}

    def _changed(self, expected: str) -> EngineError:
        return EngineError(f"{self._title}: expected {expected}; it was changed: build the version again")


def open_searcher(manifest: Manifest, settings: EngineSettings) -> Searcher:
    """Connect to Milvus, and check and load the collections of a bundle; raises as `KeyCollection` does."""
    engine, index, connection = manifest.engine, manifest.index, Connection(settings)
    assert engine is not None, "the manifest names an engine"
    try:
        return Searcher(
            KeyCollection(connection, engine.instances, index.instances, manifest.dim),
            KeyCollection(connection, engine.labels, index.labels, manifest.dim),
            connection,
        )
    except BaseException:
        connection.close()
        raise


@contextlib.contextmanager
def dropping(settings: EngineSettings, engines: dict[str, Engine]) -> Iterator[Callable[[str], None]]:
    """Connect to Milvus. Yield a function that drops the collections of a version, by the engines of all versions.

    The end reports the collections of no version. An interrupted or present build, or another store, has them.
    """
    named = {version: (engine.instances, engine.labels) for version, engine in engines.items()}
    with contextlib.closing(Connection(settings)) as connection:
        yield lambda version: connection.drop(*named.get(version, ()))
        present = {name for name in connection.call("list_collections") if name.startswith(PREFIX)}
        if left := sorted(present.difference(*named.values())):
            print_status(
                f"{', '.join(left)}: collections in Milvus of no version of this store; drop them if neither another "
                "store nor a build uses them"
            )
