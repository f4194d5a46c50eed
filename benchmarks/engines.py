"""`python -m benchmarks.engines RUN DATASET`: recall and time of a search with faiss, and with milvus-lite.

The instance keys of a run are searched for test texts: by exact search and by a graph, with an index of faiss and with
a collection of milvus-lite, whose hits bring the labels. The times are CPU time of the whole process, in which
milvus-lite runs too, so they contain client and server. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float
from pydantic import SecretStr

from benchmarks.arguments import positive_int
from index_builder.choose_index import Target
from index_builder.compaction.served_memory import ServedMemory
from index_builder.console import print_status
from index_builder.errors import BuildError
from index_builder.faiss_index import build_index, write_index
from index_builder.milvus.collections import NewCollections
from index_builder.milvus.index_types import index_type
from index_builder.milvus.measure import choose_effort
from index_builder.recall import exact_neighbours, recall
from service.errors import ServiceError
from service.milvus.collection import KeyCollection
from service.milvus.instances import InstanceCollection
from service.predictor.searcher import KeyIndex, OpenIndex
from service.settings import EngineSettings
from trainer.data.dataset import open_dataset
from trainer.encoding.checkpoint import load_checkpoint
from trainer.errors import TrainerError
from trainer.memory.memory import Memory, open_memory
from trainer.static.query_encoder import load_query_encoder

Search = Callable[[Float[np.ndarray, "query dim"], int], Any]

_KINDS, _TOGETHER = ("flat", "hnsw"), 64
_BUILD_QUERIES, _RECALL_TARGET = 256, 0.98


def measure(run: Path, dataset: Path, queries: int, folder: Path) -> dict[str, Any]:
    """Measure all searches of the instance keys of a run.

    Raises:
        BuildError, ServiceError, TrainerError: If the run or the dataset cannot be read.
    """
    faiss.omp_set_num_threads(1)
    memory = open_memory(run / "memory")
    encoder = load_query_encoder(run, memory, load_checkpoint(run / "checkpoint", "cpu"))
    split = open_dataset(dataset, "auto").read_split("test").head(queries)
    vectors = encoder.encode([str(text) for text in split.entries.texts], encoder.config.max_length)
    top_b = min(int(memory.defaults["top_b"]), memory.plan.instances)
    exact = exact_neighbours(memory.instance_keys, vectors, top_b)
    rows = []
    for kind in _KINDS:
        for engine, open_search in (("faiss", _open_faiss), ("milvus-lite", _open_milvus)):
            start = time.process_time()
            name, search, close = open_search(memory, kind, folder)
            build_seconds = time.process_time() - start
            found = np.concatenate([search(part, top_b)[1] for part in _parts(vectors, _TOGETHER)])
            rows.append(
                {
                    "engine": engine,
                    "index": name,
                    "recall": round(recall(found, memory.instance_keys, vectors, exact), 4),
                    "ms": round(_milliseconds(search, vectors, top_b, 1), 2),
                    "ms_together": round(_milliseconds(search, vectors, top_b, _TOGETHER), 2),
                    "build_seconds": round(build_seconds, 1),
                }
            )
            close()
            print_status(str(rows[-1]))
    return {"instances": memory.plan.instances, "top_b": top_b, "queries": len(vectors), "searches": rows}


def _open_faiss(memory: Memory, kind: str, folder: Path) -> tuple[str, Search, Callable[[], None]]:
    path = folder / f"{kind}.faiss"
    built, info = build_index(memory.instance_keys, kind, 0, lambda _: None)
    write_index(built, path)
    index = KeyIndex(OpenIndex(path), info)

    def search(vectors: Float[np.ndarray, "query dim"], top_b: int) -> tuple[Any, Any]:
        found = index.search(vectors, top_b)
        return found.similarities, found.keys

    return info.factory, search, lambda: None


def _open_milvus(memory: Memory, kind: str, folder: Path) -> tuple[str, Search, Callable[[], None]]:
    served, index, keys = ServedMemory.whole(memory), index_type(kind, memory.plan.instances), memory.instance_keys
    collections = NewCollections(EngineSettings(engine_uri=SecretStr(str(folder / f"{kind}.db"))))
    written = collections.write(served, "instances", keys, index)
    queries = np.asarray(keys[:: max(1, len(keys) // _BUILD_QUERIES)], dtype=np.float32)
    target = Target(_RECALL_TARGET, int(memory.defaults["top_b"]))
    info, _, _ = choose_effort(collections.connection, written, index, keys, queries, target)
    collection = KeyCollection(collections.connection, written, info, memory.plan.dim)
    found = InstanceCollection(collection, memory.plan.labels, counted=False)
    return index.name, found.search, lambda: collections.__exit__(None, None, None)


def _parts(vectors: Float[np.ndarray, "query dim"], size: int) -> list[np.ndarray]:
    return [vectors[start : start + size] for start in range(0, len(vectors), size)]


def _milliseconds(search: Search, vectors: Float[np.ndarray, "query dim"], top_b: int, together: int) -> float:
    """CPU time for each query, in calls of so many queries; the median of the calls."""
    spent = []
    for part in _parts(vectors, together):
        start = time.process_time()
        search(part, top_b)
        spent.append((time.process_time() - start) / len(part))
    return 1_000 * float(np.median(spent))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder of `recollect train`")
    parser.add_argument("dataset", type=Path, help="dataset folder; its test texts are the queries")
    parser.add_argument("--queries", type=positive_int, default=256, help="number of test texts; default: 256")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(given.run, given.dataset, given.queries, Path(folder))
        except (BuildError, ServiceError, TrainerError) as error:
            parser.error(str(error))
    print(json.dumps(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
