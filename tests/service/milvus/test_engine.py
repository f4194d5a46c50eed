"""Bundles whose keys are in Milvus: opening, live entries, export, and removal. See also `test_predictor.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.bundle.bundle import open_bundle
from service.bundle.integrity import read_manifest
from service.command_settings import ExportSettings
from service.errors import BundleError, EngineError, QueryError, SettingsError, StoreError
from service.export import export_version
from service.memory.entries import PutInstance, RemoveInstance
from service.memory_log.log import number
from service.milvus.collection import KeyCollection
from service.milvus.connection import Connection
from service.milvus.removal import Removal
from service.model import Model
from service.options import resolve_options
from service.predictor.predictor import Predictor
from service.settings import EngineSettings
from service.store.copying import copy_version
from service.store.store import Store
from tests.service.milvus.milvus_bundles import engine_at, write_milvus_bundle

QUERIES = ["Who must pay tax on the sale of a house", "sailing boats", "How long should bread be in the oven"]


@pytest.fixture
def opened(built: Any, milvus_predictor: Predictor, milvus_uri: str) -> tuple[Model, Model]:
    """Two models of the same memory, which a test may change: with its keys in files, and in Milvus."""
    bundles = Store(built.store).open(built.version), milvus_predictor.bundle
    return tuple(Model(Predictor.open(bundle, 1, engine=engine_at(milvus_uri))) for bundle in bundles)  # type: ignore


def require_equal(in_files: Model, in_milvus: Model, **options: Any) -> None:
    for first, second in zip(in_files.answer(QUERIES, **options), in_milvus.answer(QUERIES, **options), strict=True):
        assert [label.uid for label in first.labels] == [label.uid for label in second.labels]
        for label, other in zip(first.labels, second.labels, strict=True):
            assert label.score == pytest.approx(other.score, abs=1e-5)
            reasons = [{(each.kind, each.uid, each.text) for each in found.because or []} for found in (label, other)]
            assert reasons[0] == reasons[1]


def test_live_entries_change_the_answers_as_they_do_with_keys_in_files(opened: tuple[Model, Model]) -> None:
    changes: list[Callable[[Model], Any]] = [
        lambda model: model.add(
            instances=[{"uid": "new", "text": "Value added tax on bread", "labels": ["Taxation", "Cooking"]}],
            labels=[{"uid": "Sport", "text": "Sailing boats"}],
        ),
        lambda model: model.add(instances=[{"uid": "Taxation/3", "text": "A tax on boats", "labels": ["Sport"]}]),
        lambda model: model.remove(instances=["Cooking/0"], labels=["Law"]),
    ]
    for change in changes:
        for model in opened:
            change(model)
        for lambda_ in (0.0, 0.5, 1.0):
            require_equal(*opened, lambda_=lambda_, explain=True)
        require_equal(*opened, allow=["Taxation", "Sport"], explain=True)


def test_entry_that_an_outage_interrupts_is_applied_afterwards(
    opened: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(collection: KeyCollection, filter_: str, *fields: str) -> list[dict[str, Any]]:
        if "Taxation/3" in filter_:
            raise EngineError("Milvus does not answer")
        return query(collection, filter_, *fields)

    vector = opened[0].predictor.encode(["A tax on boats"])[0]
    changes = [
        PutInstance("new", "A tax on boats", ("Law",), vector),
        PutInstance("Taxation/3", "A tax on boats", ("Law",), vector),
        RemoveInstance("Cooking/0"),
    ]
    entries, query = number(changes, 1), KeyCollection.query
    monkeypatch.setattr(KeyCollection, "query", away)
    with pytest.raises(EngineError):
        opened[1].predictor.apply(entries)
    assert opened[1].sequence == 0
    monkeypatch.setattr(KeyCollection, "query", query)
    for model in opened:
        model.predictor.apply(entries)
        assert model.sequence == 3
    require_equal(*opened, explain=True)


def test_filter_that_needs_too_many_comparisons_is_refused(
    milvus_predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    voters = milvus_predictor.memory.instances.voters
    monkeypatch.setattr(type(voters), "most_compared", 4)
    with pytest.raises(QueryError, match="allow, deny: expected at most 4 keys that vote for the admitted labels"):
        milvus_predictor.predict(["x"], resolve_options(milvus_predictor.defaults, allow=("Taxation",)))


def test_labels_of_instances_that_are_no_longer_kept_are_read_again(milvus_predictor: Predictor, built: Any) -> None:
    from service.milvus import instances

    values = milvus_predictor.memory.instances.values
    assert isinstance(values, instances.InstanceCollection)
    rows = np.array([5, 0, 5])
    expected = Store(built.store).open(built.version).instances.values.gather(rows)
    values._recent.clear()
    for _ in range(2):
        for found, wanted in zip(values.gather(rows), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dim": 383}, "expected vectors of 383 dimensions, as in the manifest, found 384; build the bundle again"),
        ({"rows": 27}, "expected 27 rows, as in the manifest, found 28; build the bundle again"),
        ({"name": "recollect_none_instances"}, "expected the collection recollect_none_instances, found none"),
    ],
)
def test_collection_that_is_not_the_one_in_the_manifest_is_refused(
    milvus_predictor: Predictor, milvus_uri: str, change: dict[str, Any], expected: str
) -> None:
    from service.milvus.keys import EngineKeys

    manifest = milvus_predictor.manifest
    assert manifest.engine is not None
    collection = manifest.engine.instances.model_copy(update=change)
    engine = manifest.engine.model_copy(update={"instances": collection})
    update = {"engine": engine} | {name: value for name, value in change.items() if name == "dim"}
    bundle = dataclasses.replace(milvus_predictor.bundle, manifest=manifest.model_copy(update=update))
    with pytest.raises(BundleError, match=expected):
        EngineKeys.open(bundle, engine_at(milvus_uri))


def test_bundle_without_the_address_of_milvus_is_refused(
    milvus_predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECOLLECT_ENGINE_URI", raising=False)
    with pytest.raises(SettingsError, match="--engine-uri: required for a version whose keys are in Milvus"):
        Predictor.open(open_bundle(milvus_predictor.bundle.folder), 1)


def test_wrong_form_of_the_address_is_refused() -> None:
    with pytest.raises(SettingsError, match="--engine-uri: expected http://HOST:PORT, https://HOST:PORT or a file"):
        engine_at("localhost:19530")


def test_version_whose_keys_are_in_milvus_is_not_copied_to_another_store(
    milvus_predictor: Predictor, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    store.publish_copy(milvus_predictor.bundle.folder, milvus_predictor.version)
    with pytest.raises(StoreError, match="found one whose keys are in Milvus, which is not copied"):
        copy_version(store, milvus_predictor.version, Store(tmp_path / "other"))


def test_exported_dataset_equals_that_of_a_version_with_its_keys_in_files(
    built: Any, milvus_predictor: Predictor, milvus_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_ENGINE_URI", milvus_uri)
    store, version = Store(tmp_path / "store"), milvus_predictor.version
    store.publish_copy(milvus_predictor.bundle.folder, version)
    for source, name, out in ((built.store, built.version, "files"), (store.root, version, "milvus")):
        export_version(ExportSettings(store=source, version=name, out=tmp_path / out))
    for name in ("labels.jsonl", "train.jsonl"):
        assert (tmp_path / "milvus" / name).read_text() == (tmp_path / "files" / name).read_text()


def test_removal_drops_the_collections_of_a_version_alone(
    built: Any, milvus_predictor: Predictor, milvus_uri: str, tmp_path: Path
) -> None:
    store, connection = Store(tmp_path / "store"), Connection(engine_at(milvus_uri))
    before = connection.collections()
    for folder in (milvus_predictor.bundle.folder, write_milvus_bundle(built, tmp_path / "bundle", milvus_uri, "old")):
        store.publish_copy(folder, read_manifest(folder, None).version)
    assert {*connection.collections()} - {*before} == {"recollect_old_instances", "recollect_old_labels"}
    with Removal(store, engine_at(milvus_uri)) as removal:
        removal.drop("old")
    assert sorted(connection.collections()) == sorted(before)
    connection.close()


def test_removal_needs_the_address_only_if_keys_are_in_milvus(built: Any) -> None:
    with Removal(Store(built.store), EngineSettings()) as removal:
        removal.drop(built.version)
