"""Write the keys of a memory into collections of Milvus, which get their names when they are complete.

An unfinished collection has a name that depends on the memory alone. A build that was killed, or lost its connection,
leaves its rows there, and the next build of the same memory continues after them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Int

from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import Keys, select_keys
from recollect.index_builder.milvus.index_types import IndexType
from recollect.service.bundle.manifest import Collection, Engine
from recollect.service.console import print_status, progress_bar
from recollect.service.errors import EngineError
from recollect.service.milvus.collection import LABELS, ROW, TEXT, UID, VECTOR
from recollect.service.milvus.connection import Connection
from recollect.service.milvus.removal import PREFIX, drop
from recollect.service.settings import EngineSettings
from recollect.trainer.memory.memory import Memory

# A call that writes has at most so many rows and about so many bytes. A server accepts 64 MiB.
_BLOCK_ROWS, _BLOCK_BYTES = 2_000, 16 << 20
# Milvus's limits of a string in bytes, and of the labels of an instance.
_STRING_BYTES, _MOST_LABELS = 65_535, 4_096
# Least time limit of a call of a build: it writes, loads or searches more than the call of a query.
_CALL_SECONDS = 600.0
# An index under construction is looked at so often. Only rows that were written before the time stamp count.
_POLL_SECONDS, _END_OF_TIME = 0.5, 2**63 - 1
# A server that cannot build an index may try forever. The user gets a message if no row is indexed for this long.
_STALLED_SECONDS = 600.0


class NewCollections(AbstractContextManager["NewCollections"]):
    """The collections of a new version. They are dropped unless `keep` is called.

    Args:
        settings: The connection to Milvus.

    Attributes:
        connection: The connection.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.connection = Connection(patient(settings))
        self._created: list[str] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left = ", ".join(self._created)
        try:
            if isinstance(error, KeyboardInterrupt) and self._created:
                print_status(f"milvus: {left} left for the next build of this memory, which continues there")
            elif self.connection.problem is not None and self._created:
                print_status(f"milvus: cannot drop {left}; the next build of this memory continues there")
            else:
                drop(self.connection, self._created)
        except EngineError as failed:
            print_status(f"milvus: cannot drop {left}: {failed}")
        finally:
            self.connection.close()

    def keep(self) -> None:
        """Keep the collections, because their version is published."""
        self._created = []

    def finish(self, engine: Engine, version: str) -> Engine:
        """Give complete collections the names of their version, right before it is published.

        A build that is killed earlier leaves unfinished collections, where the next build of the memory continues.

        Raises:
            EngineError: If Milvus does not answer, or refuses a call.
        """
        named: dict[str, Collection] = {}
        for part, collection in (("instances", engine.instances), ("labels", engine.labels)):
            name = f"{PREFIX}{version.replace('-', '_')}_{part}"
            self.connection.call("rename_collection", collection.name, new_name=name)
            self._created[self._created.index(collection.name)] = name
            named[part] = collection.model_copy(update={"name": name})
        return engine.model_copy(update=named)

    def write(self, memory: Memory, part: str, keys: Keys, index: IndexType) -> Collection:
        """Write the keys of one kind, and load the collection.

        Args:
            memory: The memory.
            part: `instances` or `labels`.
            keys: Their keys.
            index: The index that Milvus builds.

        Raises:
            BuildError: If a row does not fit into Milvus.
            EngineError: If Milvus does not answer, or refuses a call.
        """
        call, name = self.connection.call, f"{PREFIX}unfinished_{_digest(memory, part, index)}_{part}"
        self._created.append(name)
        first = self._create(name, part, keys.shape[1], index)
        if 0 < first < len(keys) - _BLOCK_ROWS:  # rows were missing; it is loaded again when all rows are indexed
            call("release_collection", name)
        with progress_bar(len(keys), "key", f"milvus {part} ({index.name})", done=first) as bar:
            for block in _blocks(memory, part, keys, first):
                call("upsert", name, data=block)
                bar.update(len(block))
        call("flush", name)
        self._wait_for_index(name, part, index, len(keys))
        call("load_collection", name)
        return Collection(name=name, rows=len(keys))

    def _create(self, name: str, part: str, dim: int, index: IndexType) -> int:
        """Create a collection, and return the row at which to begin: that of an interrupted build, or 0."""
        call = self.connection.call
        if call("has_collection", name):
            call("load_collection", name)
            (found,) = call("query", name, filter="", output_fields=["count(*)"], consistency_level="Strong")
            first = max(0, int(found["count(*)"]) - _BLOCK_ROWS)  # the last call may have written a part of its rows
            print_status(f"milvus: continues an interrupted build at row {first:,} of the {part}")
            return first
        call("create_collection", name, schema=_schema(part, dim))  # without its indexes, so that it is not loaded yet
        call("create_index", name, index_params=_index_params(index))
        for field in (UID, LABELS) if part == "instances" else (UID,):
            self._index_field(name, field)
        return 0

    def _wait_for_index(self, name: str, part: str, index: IndexType, rows: int) -> None:
        """Wait until Milvus has indexed the vectors of all rows, which may take hours.

        A server searches other rows with a temporary index, whose recall is another one.
        """
        describe = functools.partial(
            self.connection.call, "describe_index", name, index_name=VECTOR, timestamp=_END_OF_TIME
        )
        changed, told = time.monotonic(), False
        with progress_bar(rows, "key", f"milvus {part} (building {index.name})") as bar:
            while (found := describe())["state"] != "Finished":
                if found["state"] == "Failed":
                    raise BuildError(
                        f"{name}: expected Milvus to build the index {index.name}, but it failed; read the log of "
                        "Milvus, or build with another --index"
                    )
                if found["indexed_rows"] != bar.n:
                    changed = time.monotonic()
                elif not told and time.monotonic() - changed >= _STALLED_SECONDS:
                    told = True
                    print_status(
                        f"milvus: no other row of {name} was indexed in {_STALLED_SECONDS / 60:.0f} minutes; its log "
                        f"says whether it can build {index.name}; Ctrl-C ends the build and keeps the rows for the next"
                    )
                bar.update(found["indexed_rows"] - bar.n)
                time.sleep(_POLL_SECONDS)
            bar.update(rows - bar.n)

    def _index_field(self, name: str, field: str) -> None:
        """Index a field for filters. milvus-lite and Milvus 2.4.0 cannot index arrays: filters then read all rows."""
        from pymilvus import MilvusClient

        params = MilvusClient.prepare_index_params()
        params.add_index(field, index_type="INVERTED")
        try:
            self.connection.call("create_index", name, index_params=params)
        except EngineError:
            if self.connection.problem is not None or field != LABELS:
                raise


def patient(settings: EngineSettings) -> EngineSettings:
    """The connection with the time limits of a build."""
    return settings.model_copy(update={"engine_seconds": max(settings.engine_seconds, _CALL_SECONDS)})


def _digest(memory: Memory, part: str, index: IndexType) -> str:
    """Identifies the rows of a collection: equal plans give equal memories."""
    facts = [vars(memory.plan), memory.defaults, part, vars(index)]
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()[:12]


def _schema(part: str, dim: int) -> Any:
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(ROW, DataType.INT64, is_primary=True)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
    schema.add_field(UID, DataType.VARCHAR, max_length=_STRING_BYTES)
    schema.add_field(TEXT, DataType.VARCHAR, max_length=_STRING_BYTES)
    if part == "instances":
        schema.add_field(LABELS, DataType.ARRAY, element_type=DataType.INT32, max_capacity=_MOST_LABELS)
    return schema


def _index_params(index: IndexType) -> Any:
    from pymilvus import MilvusClient

    params = MilvusClient.prepare_index_params()
    params.add_index(VECTOR, index_type=index.name, metric_type="IP", params=index.parameters)
    return params


def rows_of(memory: Memory, part: str, keys: Keys, numbers: Int[np.ndarray, " row"]) -> Iterator[dict[str, Any]]:
    """Yield some rows of a collection; their numbers must be in rising order.

    Raises:
        BuildError: If a key is not a unit vector, a uid is too long for Milvus, or an instance has too many labels.
    """
    path = memory.folder / f"{part}.jsonl"
    names = enumerate(zip(read_field(path, "uid"), read_field(path, "text"), strict=True))
    first_row = 0 if part == "instances" else memory.plan.instances
    for start in range(0, len(numbers), _BLOCK_ROWS):
        block = numbers[start : start + _BLOCK_ROWS]
        for number, vector in zip(
            block.tolist(), select_keys(keys, block, first_row, memory.is_normalised), strict=True
        ):
            uid, text = next(pair for row, pair in names if row == number)
            if (size := len(uid.encode())) > _STRING_BYTES:
                raise BuildError(
                    f"{path}: row {number}: expected a uid of at most {_STRING_BYTES:,} bytes, found {size:,}"
                )
            content = {ROW: number, VECTOR: vector, UID: uid, TEXT: _cut(text)}
            if part == "instances":
                content[LABELS] = _labels(memory, number, path)
            yield content


def _labels(memory: Memory, row: int, path: Path) -> list[int]:
    labels: list[int] = memory.value_indices[memory.value_indptr[row] : memory.value_indptr[row + 1]].tolist()
    if len(labels) > _MOST_LABELS:
        raise BuildError(
            f"{path}: row {row}: expected at most {_MOST_LABELS:,} labels of an instance, because Milvus stores no "
            f"more, found {len(labels):,}; build without --engine"
        )
    return labels


def _blocks(memory: Memory, part: str, keys: Keys, first: int) -> Iterator[list[dict[str, Any]]]:
    block: list[dict[str, Any]] = []
    size = 0
    for row in rows_of(memory, part, keys, np.arange(first, len(keys))):
        block.append(row)
        size += row[VECTOR].nbytes + len(row[TEXT]) * 4 + len(row[UID]) * 4
        if len(block) == _BLOCK_ROWS or size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _cut(text: str) -> str:
    """The beginning of a text that fits into a field. Only explanations show the texts."""
    return text.encode()[:_STRING_BYTES].decode(errors="ignore")
