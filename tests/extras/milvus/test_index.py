"""Builds and compactions of versions whose keys are in Milvus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

import recollect
from recollect.extras.milvus.collection import KeyCollection
from recollect.extras.milvus.connection import Connection
from recollect.extras.milvus.index import NewCollections
from recollect.index_builder.errors import BuildError
from recollect.index_builder.live_memory.compact import compact
from recollect.index_builder.settings import BuildSettings, CompactSettings
from recollect.trainer.memory.memory import open_memory
from tests.contract.make_store import POSITIONS, QUERIES, write_dataset, write_encoder
from tests.extras.milvus.milvus_bundles import engine_at

pytest.importorskip("pymilvus", reason="pymilvus is not installed")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server that RECOLLECT_MILVUS_URI names, or a file of milvus-lite."""
    return os.environ.get("RECOLLECT_MILVUS_URI") or str(tmp_path_factory.mktemp("milvus") / "milvus.db")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a ranker, whose encoder is not trained."""
    folder = tmp_path_factory.mktemp("run")
    write_dataset(folder / "dataset")
    write_encoder(folder / "encoder")
    lengths = {"max_length": POSITIONS, "label_max_length": POSITIONS}
    out, encoder = folder / "run", folder / "encoder"
    recollect.train(folder / "dataset", out=out, encoder="static", static_from=encoder, epochs=0, **lengths)
    recollect.rank(out)
    return out


def settings(run: Path, uri: str, **changes: Any) -> BuildSettings:
    return BuildSettings(run=run, store=run, engine="milvus", engine_uri=SecretStr(uri), engine_seconds=60, **changes)


def collections(uri: str) -> set[str]:
    connection = Connection(engine_at(uri))
    found = {*connection.call("list_collections")}
    connection.close()
    return found


def answers(model: recollect.Model) -> list[Any]:
    texts = [*QUERIES.values()]
    found = [
        model.answer(texts, explain=True),
        model.answer(texts, order="score", word_weight=0.5, allow=["law", "wine"]),
    ]
    return [
        [(label.uid, round(label.score, 5), round(label.probability or 0, 4)) for label in answer.labels]
        for each in found
        for answer in each
    ]


def test_compacted_version_answers_as_the_one_with_live_entries(
    run: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_ENGINE_URI", uri)
    monkeypatch.setenv("RECOLLECT_ENGINE_SECONDS", "60")
    store = tmp_path / "store"
    recollect.build(run, store=store, engine="milvus", index="flat", lexical="on", activate=True)
    before = collections(uri)
    model = recollect.open(store, live="write")
    model.add(
        labels=[{"uid": "sport", "text": "chess, football and tennis"}],
        instances=[{"uid": "a", "text": "a king and a striker", "labels": ["sport", "chess"]}],
    )
    model.remove(instances=["bread-0"], labels=["law"])
    compacted = compact(CompactSettings(store=store, index="flat", activate=True))
    reopened = recollect.open(store)
    assert reopened.version == compacted
    assert answers(reopened) == answers(model)
    assert (len(before), len(collections(uri) - before)) == (2, 2)


@pytest.mark.parametrize(("index", "factory"), [("ivf", "IVF_SQ8")])
def test_recall_of_an_index_is_measured(run: Path, uri: str, index: str, factory: str) -> None:
    memory = open_memory(run / "memory")
    with NewCollections(settings(run, uri, index=index, recall_target=0.9)) as new:
        engine, indexes, points, _ = new.write(memory, f"test-{index}")
    connection = Connection(engine_at(uri))
    connection.drop(engine.instances, engine.labels)
    connection.close()
    assert (indexes.instances.factory, indexes.instances.keys) == (factory, memory.plan.instances)
    assert points["instances"].recall >= 0.9


@pytest.mark.parametrize("problem", ["an index that cannot be built", "other keys"])
def test_failed_build_says_why_and_drops_its_collections(
    run: Path, uri: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Connection.call

    def failing(connection: Connection, method: str, *arguments: Any, **options: Any) -> Any:
        found = call(connection, method, *arguments, **options)
        return found | {"state": "Failed"} if method == "describe_index" else found

    if problem == "other keys":
        monkeypatch.setattr(KeyCollection, "vectors", lambda self, rows: np.zeros((len(rows), 16), dtype=np.float32))
        expected = "expected the keys of the memory, found others; build again"
    else:
        monkeypatch.setattr(Connection, "call", failing)
        expected = "expected Milvus to build FLAT, it failed; read the log of Milvus"
    before = collections(uri)
    with pytest.raises(BuildError, match=expected), NewCollections(settings(run, uri)) as new:
        new.write(open_memory(run / "memory"), "failed")
    assert collections(uri) == before


def test_unknown_index_is_refused_before_the_work(run: Path, uri: str) -> None:
    with pytest.raises(BuildError, match="--index SCANN: expected auto, FLAT, IVF_SQ8, HNSW, DISKANN with Milvus"):
        NewCollections(settings(run, uri, index="SCANN"))
