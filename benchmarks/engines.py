"""`python -m benchmarks.engines RUN DATASET`: recall and time of a search with faiss, milvus-lite and a Milvus server.

The instance keys of a run are searched for test texts: by exact search and by a graph, with an index of faiss and with
a collection of Milvus, whose hits bring the labels. `ms` is CPU time of this process. milvus-lite runs in this process,
so its CPU time contains client and server; for a Milvus server, it is that of the client alone. `elapsed_ms` is the
elapsed time. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float
from pydantic import SecretStr

from benchmarks.arguments import positive_int
from recollect.index_builder.choose_index import Target
from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.console import print_status
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import build_index, write_index
from recollect.index_builder.milvus.collections import NewCollections
from recollect.index_builder.milvus.index_types import index_type
from recollect.index_builder.milvus.measure import choose_effort
from recollect.index_builder.recall import exact_neighbours, recall
from recollect.service.errors import ServiceError
from recollect.service.milvus.collection import KeyCollection
from recollect.service.milvus.instances import InstanceCollection
from recollect.service.predictor.searcher import KeyIndex, OpenIndex
from recollect.service.settings import EngineSettings
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.errors import TrainerError
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.static.query_encoder import load_query_encoder

# Searches for the nearest keys of queries; the second element of the answer has their rows.
Search = Callable[[Float[np.ndarray, "query dim"], int], Any]
# Writes the keys of a memory for a value of `--index`, and removes them at the end. Gives the name of the index, too.
Opened = AbstractContextManager[tuple[str, Search]]

_KINDS, _TOGETHER = ("flat", "hnsw"), 64
_BUILD_QUERIES, _RECALL_TARGET = 256, 0.98


def measure(run: Path, dataset: Path, queries: int, folder: Path, server: EngineSettings | None) -> dict[str, Any]:
    """Measure all searches of the instance keys of a run.

    Args:
        run: Run folder.
        dataset: Dataset whose test texts are the queries.
        queries: Number of queries.
        folder: An empty folder for indexes.
        server: The connection to a Milvus server, which is measured too; None if there is none.

    Raises:
        BuildError, ServiceError, TrainerError: If the run or the dataset cannot be read, or Milvus does not answer.
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
        for engine, opened in _engines(memory, kind, folder, server).items():
            start = time.process_time()
            with opened as (name, search):
                build_seconds = time.process_time() - start
                found = np.concatenate([search(part, top_b)[1] for part in _parts(vectors, _TOGETHER)])
                alone, together = (_milliseconds(search, vectors, top_b, size) for size in (1, _TOGETHER))
            rows.append(
                {
                    "engine": engine,
                    "index": name,
                    "recall": round(recall(found, memory.instance_keys, vectors, exact), 4),
                    "ms": alone[0],
                    "ms_together": together[0],
                    "elapsed_ms": alone[1],
                    "elapsed_ms_together": together[1],
                    "build_seconds": round(build_seconds, 1),
                }
            )
            print_status(str(rows[-1]))
    return {"instances": memory.plan.instances, "top_b": top_b, "queries": len(vectors), "searches": rows}


def _engines(memory: Memory, kind: str, folder: Path, server: EngineSettings | None) -> dict[str, Opened]:
    lite = EngineSettings(engine_uri=SecretStr(str(folder / f"{kind}.db")), engine_token=None, engine_ca=None)
    engines: dict[str, Opened] = {"faiss": _faiss(memory, kind, folder), "milvus-lite": _milvus(memory, kind, lite)}
    return engines if server is None else engines | {"milvus": _milvus(memory, kind, server)}


@contextmanager
def _faiss(memory: Memory, kind: str, folder: Path) -> Iterator[tuple[str, Search]]:
    path = folder / f"{kind}.faiss"
    built, info = build_index(memory.instance_keys, kind, 0, lambda _: None)
    write_index(built, path)
    index = KeyIndex(OpenIndex(path), info)

    def search(vectors: Float[np.ndarray, "query dim"], top_b: int) -> tuple[Any, Any]:
        found = index.search(vectors, top_b)
        return found.similarities, found.keys

    yield info.factory, search


@contextmanager
def _milvus(memory: Memory, kind: str, settings: EngineSettings) -> Iterator[tuple[str, Search]]:
    served, index, keys = ServedMemory.whole(memory), index_type(kind, memory.plan.instances), memory.instance_keys
    with NewCollections(settings) as collections:
        written = collections.write(served, "instances", keys, index)
        queries = np.asarray(keys[:: max(1, len(keys) // _BUILD_QUERIES)], dtype=np.float32)
        target = Target(_RECALL_TARGET, int(memory.defaults["top_b"]))
        info, _, _ = choose_effort(collections.connection, written, index, keys, queries, target)
        collection = KeyCollection(collections.connection, written, info, memory.plan.dim)
        yield index.name, InstanceCollection(collection, memory.plan.labels, counted=False).search


def _parts(vectors: Float[np.ndarray, "query dim"], size: int) -> list[np.ndarray]:
    return [vectors[start : start + size] for start in range(0, len(vectors), size)]


def _milliseconds(
    search: Search, vectors: Float[np.ndarray, "query dim"], top_b: int, together: int
) -> tuple[float, float]:
    """CPU time and elapsed time for each query, in calls of so many queries; the medians of the calls."""
    spent = []
    for part in _parts(vectors, together):
        start, start_cpu = time.perf_counter(), time.process_time()
        search(part, top_b)
        spent.append(((time.process_time() - start_cpu) / len(part), (time.perf_counter() - start) / len(part)))
    cpu, elapsed = (1_000 * np.median(spent, axis=0)).round(2).tolist()
    return cpu, elapsed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder of `recollect train`")
    parser.add_argument("dataset", type=Path, help="dataset folder; its test texts are the queries")
    parser.add_argument("--queries", type=positive_int, default=256, help="number of test texts; default: 256")
    parser.add_argument(
        "--engine-uri",
        type=SecretStr,
        help="also measure this Milvus server; its token, CA certificates and time limit come from the environment "
        "variables of `recollect serve`",
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            server = None if given.engine_uri is None else EngineSettings(engine_uri=given.engine_uri)
            found = measure(given.run, given.dataset, given.queries, Path(folder), server)
        except (BuildError, ServiceError, TrainerError) as error:
            parser.error(str(error))
    print(json.dumps(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
