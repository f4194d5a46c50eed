from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from recollect.index_builder.choose_index import Target
from recollect.index_builder.errors import BuildError
from recollect.index_builder.milvus import collections as new_collections
from recollect.index_builder.milvus.build import write_engine
from recollect.index_builder.milvus.collections import NewCollections
from recollect.index_builder.milvus.index_types import IndexType, index_type
from recollect.index_builder.milvus.measure import check_rows, choose_effort
from recollect.service.milvus.collection import KeyCollection
from recollect.service.milvus.connection import Connection
from recollect.trainer.memory.memory import Memory, open_memory
from tests.service.milvus.milvus_bundles import build_settings, engine_at

pytest.importorskip("pymilvus", reason="pymilvus is not installed")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server that RECOLLECT_MILVUS_URI names, or a file of milvus-lite."""
    return os.environ.get("RECOLLECT_MILVUS_URI") or str(tmp_path_factory.mktemp("milvus") / "milvus.db")


@pytest.fixture
def memory(built: Any) -> Memory:
    return open_memory(built.run / "memory")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call writes four rows."""
    monkeypatch.setattr(new_collections, "_BLOCK_ROWS", 4)


def unfinished(uri: str) -> list[str]:
    with NewCollections(engine_at(uri)) as collections:
        return [name for name in collections.connection.collections() if "_unfinished_" in name]


def write(collections: NewCollections, memory: Memory, index: IndexType) -> Any:
    return collections.write(memory, "instances", memory.instance_keys, index)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_collection_has_the_rows_of_the_memory_and_a_measured_recall(
    memory: Memory, uri: str, kind: str, few_rows: None
) -> None:
    keys, index = memory.instance_keys, index_type(kind, len(memory.instance_keys))
    with NewCollections(engine_at(uri)) as collections:
        found = write(collections, memory, index)
        info, point, _ = choose_effort(
            collections.connection, found, index, keys, np.array(keys[:8], dtype=np.float32), Target(0.98, 10)
        )
        check_rows(memory, "instances", keys, KeyCollection(collections.connection, found, info, keys.shape[1]))
    assert (found.rows, info.factory, point.recall) == (28, index.name, 1.0)
    assert unfinished(uri) == []


def answer_index_states(monkeypatch: pytest.MonkeyPatch, *states: str) -> list[str]:
    """Milvus reports these states of an index, and then the true ones. Gives the methods that are called."""
    called, left, call = [], [*states], Connection.call

    def counted(connection: Connection, method: str, *arguments: Any, **options: Any) -> Any:
        called.append(method)
        found = call(connection, method, *arguments, **options)
        return found | {"state": left.pop(0), "indexed_rows": 7} if method == "describe_index" and left else found

    monkeypatch.setattr(Connection, "call", counted)
    monkeypatch.setattr(new_collections, "_POLL_SECONDS", 0.0)
    return called


def test_collection_is_loaded_and_measured_only_when_milvus_has_built_its_index(
    memory: Memory, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = answer_index_states(monkeypatch, "Unissued", "InProgress", "InProgress")
    with NewCollections(engine_at(uri)) as collections:
        write(collections, memory, index_type("hnsw", 28))
        written = called[called.index("upsert") :]
    assert written[:3] == ["upsert", "flush", "describe_index"]
    assert written.count("describe_index") >= 4
    assert written.index("load_collection") > len(written) - 1 - written[::-1].index("describe_index")


def test_index_that_milvus_cannot_build_fails_the_build(
    memory: Memory, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_index_states(monkeypatch, "InProgress", "Failed")
    with (
        pytest.raises(BuildError, match="expected Milvus to build the index HNSW, but it failed; read the log"),
        NewCollections(engine_at(uri)) as collections,
    ):
        write(collections, memory, index_type("hnsw", 28))
    monkeypatch.undo()
    assert unfinished(uri) == []


def test_failed_build_drops_its_collections(uri: str, memory: Memory) -> None:
    def build_and_fail() -> None:
        with NewCollections(engine_at(uri)) as collections:
            write(collections, memory, index_type("flat", 28))
            raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        build_and_fail()
    assert unfinished(uri) == []


def test_collections_get_the_name_of_the_version_and_are_dropped_if_it_is_not_published(
    uri: str, memory: Memory, built: Any
) -> None:
    settings = build_settings(built, uri, index="flat")
    with NewCollections(settings) as collections:
        engine, *_ = write_engine(memory, settings, collections)
        assert sorted(unfinished(uri)) == sorted([engine.instances.name, engine.labels.name])
        named = collections.finish(engine, "20260102-030405-abc")
        assert (named.instances.name, named.instances.rows) == ("recollect_20260102_030405_abc_instances", 28)
        assert {named.instances.name, named.labels.name} <= {*collections.connection.collections()}
    with NewCollections(settings) as collections:
        assert not {named.instances.name, named.labels.name} & {*collections.connection.collections()}


def test_interrupted_build_is_continued_by_the_next_build_of_the_same_memory(
    memory: Memory, uri: str, few_rows: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> Iterator[list[dict[str, Any]]]:
        yield from [next(blocks := new_blocks(*arguments)), next(blocks)]
        raise KeyboardInterrupt

    new_blocks, index = new_collections._blocks, index_type("flat", 28)
    monkeypatch.setattr(new_collections, "_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt), NewCollections(engine_at(uri)) as collections:
        write(collections, memory, index)
    assert "left for the next build of this memory" in capsys.readouterr().err
    monkeypatch.setattr(new_collections, "_blocks", new_blocks)
    with NewCollections(engine_at(uri)) as collections:
        found = write(collections, memory, index)
        assert "continues an interrupted build at row 4 of the instances" in capsys.readouterr().err
        keys = memory.instance_keys
        info, _, _ = choose_effort(
            collections.connection, found, index, keys, np.array(keys[:8], dtype=np.float32), Target(0.98, 10)
        )
        check_rows(memory, "instances", keys, KeyCollection(collections.connection, found, info, keys.shape[1]))


def test_row_that_differs_from_the_memory_is_found(memory: Memory, uri: str) -> None:
    keys, index = memory.instance_keys, index_type("flat", 28)
    with NewCollections(engine_at(uri)) as collections:
        found = write(collections, memory, index)
        (row,) = collections.connection.call("query", found.name, filter="row == 3", output_fields=["*"])
        collections.connection.call("upsert", found.name, data=[row | {"text": "another text"}])
        info, _, _ = choose_effort(
            collections.connection, found, index, keys, np.array(keys[:8], dtype=np.float32), Target(0.98, 10)
        )
        with pytest.raises(BuildError, match="row 3: expected the text of the memory, found another one"):
            check_rows(memory, "instances", keys, KeyCollection(collections.connection, found, info, keys.shape[1]))
