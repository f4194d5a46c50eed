"""Bundles whose keys are in Milvus: opening, live entries, export, and removal. See also `test_predictor.py`."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect.index_builder.build import write_manifest
from recollect.service.bundle.bundle import open_bundle
from recollect.service.bundle.integrity import describe_files, read_manifest
from recollect.service.bundle.strings import write_table
from recollect.service.command_settings import ExportSettings
from recollect.service.errors import BundleError, EngineError, QueryError, SettingsError, StoreError
from recollect.service.export import export_version
from recollect.service.memory.entries import PutInstance, RemoveInstance
from recollect.service.memory_log.log import number
from recollect.service.milvus.collection import KeyCollection
from recollect.service.milvus.connection import Connection
from recollect.service.milvus.removal import Removal, drop
from recollect.service.model import Model
from recollect.service.options import resolve_options
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.copying import copy_version
from recollect.service.store.store import Store
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
    from recollect.service.milvus.keys import EngineKeys

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


def test_uids_with_special_characters_are_found(
    built: Any, milvus_predictor: Predictor, move_to_milvus: Callable[[Path], Predictor], tmp_path: Path
) -> None:
    odd = ["it's", 'say "x"', "back\\slash", "a\nb\tc", "%s {x} $1", "\U0001f600", "'; row > 0; '", "\\"]
    folder = tmp_path / "bundle"
    shutil.copytree(Store(built.store).path(built.version), folder)
    uids = Store(built.store).open(built.version).instances.uids
    write_table(folder, "instance_uids", odd + [uids[row] for row in range(len(odd), len(uids))])
    manifest = read_manifest(folder, None)
    write_manifest(folder, manifest.model_copy(update={"files": describe_files(folder)}))
    finder = move_to_milvus(folder).memory.instances.finder
    assert finder is not None
    assert [finder.find(uid) for uid in [*odd, "it"]] == [*range(len(odd)), None]
    finder.expect([*odd, "it"])
    assert [finder.find(uid) for uid in [*odd, "it"]] == [*range(len(odd)), None]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"labels": [999]}, "expected labels from 0 to 7, as the build wrote them, found"),
        ({"row": 999}, "expected rows below 28, as the build wrote them, found row 999"),
    ],
)
def test_collection_that_was_changed_later_gives_no_answers(
    built: Any,
    move_to_milvus: Callable[[Path], Predictor],
    tmp_path: Path,
    change: dict[str, Any],
    expected: str,
) -> None:
    shutil.copytree(Store(built.store).path(built.version), tmp_path / "bundle")
    moved = move_to_milvus(tmp_path / "bundle")
    assert moved.keys is not None
    assert moved.manifest.engine is not None
    connection, name = moved.keys.connection, moved.manifest.engine.instances.name
    (row,) = connection.call("query", name, filter="row == 3", output_fields=["*"])
    connection.call("delete", name, ids=[3])
    connection.call("upsert", name, data=[dict(row) | change])
    connection.call("query", name, filter="row == 0", consistency_level="Strong")  # waits for the change
    with pytest.raises(EngineError, match=expected):
        Model(moved).predict(QUERIES, top_b=100)


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
        assert {"recollect_old_instances", "recollect_old_labels"}.isdisjoint(removal.leftover())
        removal.drop("old")
    other = Store(tmp_path / "other")
    other.publish_copy(milvus_predictor.bundle.folder, milvus_predictor.version)
    write_milvus_bundle(built, tmp_path / "lost", milvus_uri, "lost")
    with Removal(other, engine_at(milvus_uri)) as removal:
        assert {"recollect_lost_instances", "recollect_lost_labels"} <= {*removal.leftover()}
        drop(connection, ["recollect_lost_instances", "recollect_lost_labels"])
    assert sorted(connection.collections()) == sorted(before)
    connection.close()
