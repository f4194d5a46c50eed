"""Compare collections of Milvus with the memory: rows of a sample, and the recall against exact search."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

from recollect.index_builder.choose_index import Target, choose_point, efforts, evenly_spaced_rows, meeting
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import Keys
from recollect.index_builder.milvus.collections import rows_of
from recollect.index_builder.milvus.index_types import IndexType
from recollect.index_builder.recall import exact_neighbours, recall, search_milliseconds
from recollect.service.bundle.manifest import Collection, IndexInfo, Point
from recollect.service.milvus.collection import ROW, KeyCollection
from recollect.service.milvus.connection import Connection
from recollect.trainer.memory.memory import Memory

# Number of rows that are compared field by field.
_SAMPLE_ROWS = 256
_TIMED_SECONDS = 2.0


def check_rows(memory: Memory, part: str, keys: Keys, collection: KeyCollection) -> None:
    """Compare some rows of a collection with those of the memory. The number of rows is compared when it opens.

    Raises:
        BuildError: If a row differs.
    """
    numbers = evenly_spaced_rows(len(keys), _SAMPLE_ROWS)
    rows = [*rows_of(memory, part, keys, numbers)]
    stored = collection.rows(numbers.tolist(), *rows[0])
    for expected in rows:
        found = stored[expected[ROW]]
        for name, value in expected.items():
            if not np.array_equal(np.asarray(found[name], dtype=np.asarray(value).dtype), value):
                raise BuildError(
                    f"{collection.name}: row {expected[ROW]:,}: expected the {name} of the memory, found another one; "
                    "build again"
                )


def choose_effort(
    connection: Connection,
    collection: Collection,
    index: IndexType,
    keys: Keys,
    queries: Float[np.ndarray, "query dim"],
    target: Target,
) -> tuple[IndexInfo, Point, list[Point]]:
    """Measure the recall of a collection with the target's effort, or with more and more until it meets the target.

    Returns:
        The manifest entry of the index, its chosen measurement, and all measurements.
    """
    info = IndexInfo(kind=index.kind, factory=index.name, keys=collection.rows)
    top_b = min(target.top_b, info.keys)
    exact, points = exact_neighbours(keys, queries, top_b), []
    for effort in _efforts(info, index.lists, top_b) if target.effort is None else [target.effort]:
        tried = KeyCollection(connection, collection, info.model_copy(update={"effort": effort}), keys.shape[1])
        search = functools.partial(tried.search, top_b=top_b)
        point = Point(
            factory=index.name,
            keys=info.keys,
            effort=effort,
            refine=1,
            recall=recall(search(queries)[1], keys, queries, exact),
            milliseconds=float(np.median(search_milliseconds(search, queries, _TIMED_SECONDS))),
            bytes_per_key=index.bytes_per_key(keys.shape[1]),
        )
        points.append(point)
        if meeting([point], target):
            break
    best = choose_point(points, target)
    return info.model_copy(update={"effort": best.effort}), best, points


def _efforts(info: IndexInfo, lists: int, top_b: int) -> list[int]:
    graph = info.model_copy(update={"kind": "hnsw"}) if info.kind == "diskann" else info
    return efforts(graph, lists, top_b)
