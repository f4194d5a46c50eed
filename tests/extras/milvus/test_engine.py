"""Bundles whose keys are in Milvus. See also `test_predictor.py`, `test_filters.py` and `memory/test_equality.py`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import MANIFEST
from recollect.core.errors import BundleError, EngineError, SettingsError, StoreError
from recollect.core.predictor import Predictor
from recollect.extras.milvus.collection import dropping
from recollect.extras.milvus.connection import Connection
from recollect.model import Model
from recollect.store.store import Store
from tests.contract.make_store import GOLDEN, STORE
from tests.contract.matching import differences
from tests.contract.test_golden import as_keywords
from tests.extras.milvus.milvus_bundles import LiteServer, engine_at, move_keys, move_to_milvus

pytest.importorskip("pymilvus", reason="pymilvus is not installed")


def golden_bundle(folder: Path) -> Path:
    """A copy of the committed version, which has words and a ranker."""
    (source,) = (STORE / "bundles").iterdir()
    return shutil.copytree(source, folder)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiteServer]:
    server = LiteServer(tmp_path / "milvus")
    yield server
    server.stop()


def test_votes_words_ranker_filters_and_explanations_equal_the_golden_answers(
    move_to_milvus: Callable[[Path], Predictor], tmp_path: Path
) -> None:
    record, model = json.loads(GOLDEN.read_text(encoding="utf-8")), Model(move_to_milvus(golden_bundle(tmp_path / "b")))
    for case in record["cases"]:
        (answer,) = model.answer([record["queries"][case["query"]]], **as_keywords(case["options"]))
        assert not differences(json.loads(json.dumps(answer.to_dict())), case["answer"]), case


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"counts": {"instances": 27}}, "expected 27 rows of 384 dimensions, as in the manifest, found 28 of 384"),
        ({"engine": {"instances": "recollect_none"}}, "recollect_none: expected a collection, found none"),
    ],
)
def test_collection_that_is_not_the_one_in_the_manifest_is_refused(
    milvus_predictor: Predictor, milvus_uri: str, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    folder = shutil.copytree(milvus_predictor.bundle.folder, tmp_path / "bundle")
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if "counts" in change:
        manifest["index"]["instances"]["keys"] = change["counts"]["instances"]
    else:
        manifest["engine"] |= change["engine"]
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BundleError, match=expected):
        Predictor.open(open_bundle(folder), 1, connections=engine_at(milvus_uri))


def test_collection_that_lost_a_row_later_gives_no_wrong_answer(
    move_to_milvus: Callable[[Path], Predictor], milvus_uri: str, tmp_path: Path
) -> None:
    from pymilvus import MilvusClient

    model = Model(move_to_milvus(golden_bundle(tmp_path / "bundle")))
    client, label = MilvusClient(milvus_uri, dedicated=True), model.predictor.bundle.labels.uids[3]
    client.delete(model.manifest.engine.labels, ids=[3])
    client.query(model.manifest.engine.labels, filter="row == 0", consistency_level="Strong")  # waits for the change
    client.close()
    with pytest.raises(EngineError, match="expected 1 rows, found 0; it was changed: build the version again"):
        model.predict("flour", lambda_=0.0, allow=[label])


def test_bundle_without_the_address_of_milvus_is_refused(
    milvus_predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECOLLECT_ENGINE_URI", raising=False)
    with pytest.raises(SettingsError, match="--engine-uri: required for a version whose keys are in Milvus"):
        Predictor.open(open_bundle(milvus_predictor.bundle.folder), 1)


def test_unreachable_server_is_named_without_the_credentials_of_its_uri() -> None:
    with pytest.raises(EngineError, match=r"^http://127\.0\.0\.1:9/texts: expected Milvus to answer, found: ") as error:
        Connection(engine_at("http://someone:secret@127.0.0.1:9/texts", engine_seconds=1))
    assert "secret" not in str(error.value)


def test_collection_that_was_released_is_loaded_again(server: LiteServer, tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    model = Model(move_to_milvus(golden_bundle(tmp_path / "bundle"), server.uri))
    before, client = model.predict("flour"), MilvusClient(server.uri, dedicated=True)
    client.release_collection(model.manifest.engine.labels)
    with pytest.raises(EngineError, match="Milvus loads the collection; try again shortly"):
        model.predict("flour")
    while model.predictor.engine.problem is not None:
        time.sleep(0.05)
    assert model.predict("flour") == before
    client.close()
    model.predictor.close()


def test_version_whose_keys_are_in_milvus_is_not_copied_to_another_store(
    milvus_predictor: Predictor, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    store.publish(milvus_predictor.bundle.folder, milvus_predictor.version, keep=True)
    with pytest.raises(StoreError, match="found one whose keys are in Milvus, which is not copied"):
        store.copy(milvus_predictor.version, Store(tmp_path / "other"))


def test_removal_drops_the_collections_of_a_version_alone_and_names_those_of_none(
    server: LiteServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, found = Store(tmp_path / "store"), {}
    for version in ("old", "new", "lost"):
        folder = golden_bundle(tmp_path / version)
        manifest = json.loads((folder / MANIFEST).read_bytes()) | {"version": version}
        (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        engine = json.loads((move_keys(folder, server.uri) / MANIFEST).read_bytes())["engine"]
        found[version] = {engine["instances"], engine["labels"]}
        if version != "lost":
            store.publish(folder, version, keep=True)
    with dropping(engine_at(server.uri), store.engines()) as drop:
        drop("old")
    lost = capsys.readouterr().err.partition(": collections in Milvus of no version of this store")[0]
    assert {*lost.split(", ")} == found["lost"]
    connection = Connection(engine_at(server.uri))
    assert {*connection.call("list_collections")} == found["new"] | found["lost"]
    connection.close()
