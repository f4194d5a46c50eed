"""A collection of keys in Milvus: one row for each key, with its vector and the fields that answers need.

The primary key `row` is the number of the key: the row of an instance in the memory, or the position of a label. A
collection does not change after its version was published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.service.bundle.manifest import Collection, IndexInfo
from recollect.service.errors import BundleError, EngineError
from recollect.service.milvus.connection import Connection

# Names of the fields. Label keys have neither labels nor counts.
ROW, VECTOR, UID, TEXT, LABELS = "row", "vector", "uid", "text", "labels"
# Milvus returns at most this number of hits for a query.
MOST_HITS = 16_384
# Number of rows that are named in one filter.
_NAMED_ROWS = 2_048
# Limits of a call that searches: its queries, and its hits, because their labels come with them.
_MOST_QUERIES, _CALL_HITS = 1_024, 131_072


class KeyCollection:
    """A loaded collection of keys.

    Args:
        connection: The connection to Milvus.
        collection: Its entry in the manifest.
        index: The index and its search effort.
        dim: Number of dimensions.

    Raises:
        BundleError: If Milvus has no such collection, or it has another number of dimensions or rows.
        EngineError: If Milvus does not answer.
    """

    def __init__(self, connection: Connection, collection: Collection, index: IndexInfo, dim: int) -> None:
        self.name, self.keys = collection.name, collection.rows
        self._connection, self._index = connection, index
        self._check(dim)
        self._lists = self._number_of_lists() if index.kind == "ivf" else 0

    def search(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        """The similarities and rows of the nearest keys of each query; -inf and -1 for missing keys."""
        return self.search_with(vectors, top_b)[:2]

    def search_with(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int, *fields: str
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"], list[Any]]:
        """Find the nearest keys of each query.

        Returns:
            Similarities and rows, -inf and -1 for missing keys, and pymilvus's hits of each query with the fields.
        """
        top_b = min(top_b, self.keys, MOST_HITS)
        parameters = {"metric_type": "IP", "params": search_parameters(self._index, top_b, self.keys, self._lists)}
        step, found = max(1, min(_MOST_QUERIES, _CALL_HITS // top_b)), []
        for start in range(0, len(vectors), step):
            found += self._connection.call(
                "search",
                self.name,
                data=np.ascontiguousarray(vectors[start : start + step], dtype=np.float32).tolist(),
                anns_field=VECTOR,
                limit=top_b,
                output_fields=list(fields),
                search_params=parameters,
            )
        similarities = np.full((len(vectors), top_b), -np.inf, dtype=np.float32)
        rows = np.full((len(vectors), top_b), -1, dtype=np.int64)
        for query, hits in enumerate(found):
            similarities[query, : len(hits)], rows[query, : len(hits)] = hits.distances, hits.ids
        if rows.max(initial=-1) >= self.keys:
            raise self.changed(f"rows below {self.keys:,}", f"row {rows.max():,}")
        return similarities, rows, found

    def changed(self, expected: str, found: str) -> EngineError:
        """The error for a collection that somebody changed after its version was published."""
        return EngineError(
            f"{self._connection.name}: {self.name}: expected {expected}, as the build wrote them, found {found}; "
            "the collection was changed: build the version again"
        )

    def rows(self, rows: Sequence[int], *fields: str) -> dict[int, dict[str, Any]]:
        """The fields of some rows.

        Raises:
            EngineError: If Milvus does not answer, or a row is missing.
        """
        wanted = list(dict.fromkeys(rows))
        found: dict[int, dict[str, Any]] = {}
        for start in range(0, len(wanted), _NAMED_ROWS):
            block = wanted[start : start + _NAMED_ROWS]
            found |= {hit[ROW]: hit for hit in self.query(f"{ROW} in {block}", *fields)}
        if len(found) < len(wanted):
            missing = next(row for row in wanted if row not in found)
            raise self.changed(f"row {missing:,}", "none")
        return found

    def query(self, filter_: str, *fields: str) -> list[dict[str, Any]]:
        """At most `MOST_HITS` rows that a filter of Milvus admits, with these fields and their numbers."""
        found = self._connection.call("query", self.name, filter=filter_, output_fields=[ROW, *fields], limit=MOST_HITS)
        return list(found)

    def query_all(self, filter_: str, *fields: str) -> Iterator[dict[str, Any]]:
        """Yield all rows that a filter admits, with these fields and their numbers."""
        found = self._connection.call(
            "query_iterator", self.name, filter=filter_, output_fields=[ROW, *fields], batch_size=MOST_HITS
        )
        try:
            while page := self._connection.guard(found.next, "query", f"query of {self.name}"):
                yield from page
        finally:
            found.close()

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        """The similarities of a query to the given keys, from the vectors that Milvus stores."""
        found = np.empty(len(keys), dtype=np.float32)
        for start in range(0, len(keys), _NAMED_ROWS):
            block = keys[start : start + _NAMED_ROWS].tolist()
            rows = self.rows(block, VECTOR)
            vectors = np.array([rows[row][VECTOR] for row in block], dtype=np.float32)
            np.einsum("kd,d->k", vectors, vector, out=found[start : start + len(block)])
        return found

    def count(self) -> int:
        """The number of rows, as all earlier writes left it."""
        (found,) = self._connection.call(
            "query", self.name, filter="", output_fields=["count(*)"], consistency_level="Strong"
        )
        return int(found["count(*)"])

    def _check(self, dim: int) -> None:
        name, call = self._connection.name, self._connection.call
        if not call("has_collection", self.name):
            raise BundleError(
                f"{name}: expected the collection {self.name}, found none; check --engine-uri, or build it again"
            )
        fields = {field["name"]: field for field in call("describe_collection", self.name)["fields"]}
        found = fields.get(VECTOR, {}).get("params", {}).get("dim", 0)
        if int(found) != dim:
            raise BundleError(
                f"{name}: {self.name}: expected vectors of {dim} dimensions, as in the manifest, found {found}; "
                "build the bundle again"
            )
        self._connection.load(self.name)
        if (rows := self.count()) != self.keys:
            raise BundleError(
                f"{name}: {self.name}: expected {self.keys:,} rows, as in the manifest, found {rows:,}; "
                "build the bundle again"
            )

    def _number_of_lists(self) -> int:
        """Milvus's number of inverted lists of a segment; 0 if it does not say."""
        found = self._connection.call("describe_index", self.name, index_name=VECTOR) or {}
        return int(found.get("nlist", 0))


def search_parameters(index: IndexInfo, top_b: int, keys: int, lists: int) -> dict[str, int]:
    """Milvus's search parameters for an effort.

    A graph must visit at least as many keys as a search returns, and of inverted lists, all keys need all lists.
    """
    match index.kind:
        case "ivf":
            return {"nprobe": max(index.effort, math.ceil(lists * top_b / keys))}
        case "hnsw":
            return {"ef": max(index.effort, top_b)}
        case "diskann":
            return {"search_list": max(index.effort, top_b)}
    return {}
