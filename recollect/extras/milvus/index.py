"""Write the keys of a memory into collections of Milvus, measure their recall, and check them."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

import numpy as np

from recollect.core.bundle.manifest import Engine, Indexes, IndexInfo, Point
from recollect.core.errors import EngineError
from recollect.core.system.console import print_status, progress_bar
from recollect.extras.milvus.collection import ROW, VECTOR, KeyCollection
from recollect.extras.milvus.connection import PREFIX, Connection
from recollect.index_builder.choose_index import (
    QUERIES,
    IndexTrial,
    Target,
    TrialQueries,
    choose_effort,
    evenly_spaced_rows,
)
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import lists, select_keys
from recollect.index_builder.settings import PublishSettings
from recollect.trainer.memory.memory import Memory

# With fewer keys, `auto` means exact search.
_FEW_KEYS = 20_000
# Fewest inverted lists (milvus-lite always has this number), and Milvus's limit.
_LISTS = 128, 65_536
# Bytes of a call that writes (a server accepts 64 MiB), and number of keys that are compared with the memory.
_CALL_BYTES, _SAMPLE_KEYS = 16 << 20, 256
# An index under construction is looked at so often. Only rows that were written before the time stamp count.
_POLL_SECONDS, _END_OF_TIME = 0.5, 2**63 - 1


def index_type(settings: PublishSettings, keys: int) -> tuple[IndexInfo, dict[str, int]]:
    """The index of a number of keys, and its parameters in Milvus.

    Raises:
        BuildError: If Milvus has no such `--index`.
    """
    name = settings.index.upper()
    name = {"AUTO": "FLAT" if keys < _FEW_KEYS else "HNSW", "IVF": "IVF_SQ8"}.get(name, name)
    types: dict[str, tuple[Any, dict[str, int]]] = {
        "FLAT": ("flat", {}),
        "IVF_SQ8": ("ivf", {"nlist": int(np.clip(lists(keys), *_LISTS))}),
        "HNSW": ("hnsw", {"M": settings.hnsw_m or 32, "efConstruction": settings.hnsw_ef_construction or 200}),
        "DISKANN": ("diskann", {}),
    }
    if name not in types:
        raise BuildError(f"--index {settings.index}: expected auto, {', '.join(types)} with Milvus; choose one of them")
    kind, parameters = types[name]
    return IndexInfo(kind=kind, factory=name, keys=keys), parameters


class NewCollections(contextlib.AbstractContextManager["NewCollections"]):
    """The collections of a new version, which an error drops. `settings` name the index and the server."""

    def __init__(self, settings: PublishSettings) -> None:
        index_type(settings, 1)  # a wrong --index fails here, before the work that takes minutes
        self._settings, self._connection, self._created = settings, Connection(settings), list[str]()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                self._connection.drop(*self._created)
        except EngineError as error:
            print_status(f"milvus: cannot drop {', '.join(self._created)}: {error}")
        finally:
            self._connection.close()

    def write(self, memory: Memory, version: str) -> tuple[Engine, Indexes, dict[str, Point], dict[str, list[Point]]]:
        """Write, measure and check the collections of a version; return the engine, and what `write_indexes` returns.

        Raises:
            BuildError: If a key is not a unit vector, or Milvus cannot build the index, or has other keys afterwards.
            EngineError: If Milvus does not answer, or refuses a call.
        """
        rows = evenly_spaced_rows(memory.plan.instances, QUERIES)
        queries = TrialQueries(memory.queries(rows), rows)
        top_b = int(memory.defaults["top_b"])
        target = Target(self._settings.recall_target, top_b, effort=self._settings.hnsw_ef_search)
        names: dict[str, str] = {}
        infos: dict[str, IndexInfo] = {}
        points: dict[str, Point] = {}
        curves: dict[str, list[Point]] = {}
        for part, first_row, keys in (
            ("labels", memory.plan.instances, memory.label_keys()),
            ("instances", 0, memory.instance_keys),
        ):
            name = names[part] = f"{PREFIX}{version.replace('-', '_')}_{part}"
            info, parameters = index_type(self._settings, len(keys))
            select = functools.partial(select_keys, keys, first_row=first_row, unit=memory.is_normalised)
            self._write(name, info, parameters, keys.shape[1], select)
            collection = KeyCollection(self._connection, name, info, keys.shape[1])
            collection.lists = parameters.get("nlist", 0)  # milvus-lite does not say it
            sample = evenly_spaced_rows(len(keys), _SAMPLE_KEYS)
            if not np.array_equal(collection.vectors(sample), select(sample)):
                raise BuildError(f"{name}: expected the keys of the memory, found others; build again")
            asked = queries if part == "instances" else TrialQueries(queries.vectors)
            trial = IndexTrial(collection, keys, asked, top_b, float(keys.shape[1] * (1 if info.kind == "ivf" else 4)))
            infos[part], points[part], curves[part] = choose_effort(trial, target)
        return Engine(name="milvus", **names), Indexes(**infos), points, curves

    def _write(self, name: str, info: IndexInfo, parameters: dict[str, int], dim: int, select: Any) -> None:
        """Write a collection, and wait until Milvus has built its index, which may take hours."""
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(ROW, DataType.INT64, is_primary=True)
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
        index = MilvusClient.prepare_index_params()
        index.add_index(VECTOR, index_type=info.factory, metric_type="IP", params=parameters)
        call, step = self._connection.call, max(1, _CALL_BYTES // (4 * dim))
        self._created.append(name)
        call("create_collection", name, schema=schema)  # without the index, so that it is not loaded yet
        call("create_index", name, index_params=index)
        with progress_bar(info.keys, "key", name) as bar:
            for start in range(0, info.keys, step):
                vectors = select(np.arange(start, min(start + step, info.keys)))
                call("insert", name, data=[{ROW: row, VECTOR: vector} for row, vector in enumerate(vectors, start)])
                bar.update(len(vectors))
        call("flush", name)
        described = functools.partial(call, "describe_index", name, index_name=VECTOR, timestamp=_END_OF_TIME)
        with progress_bar(info.keys, "key", f"{name} ({info.factory})") as bar:
            while (found := described())["state"] != "Finished":
                if found["state"] == "Failed":
                    raise BuildError(
                        f"{name}: expected Milvus to build {info.factory}, it failed; read the log of Milvus"
                    )
                bar.update(found["indexed_rows"] - bar.n)
                time.sleep(_POLL_SECONDS)
