"""`recollect build --compact`: fewer or smaller keys, and the measured change of the answers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.index_builder.build import build, write_manifest
from recollect.index_builder.compaction.compact import compact
from recollect.index_builder.compaction.methods import Methods
from recollect.index_builder.compaction.rotation import fit_rotation, rotate
from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.errors import BuildError, CheckFailed
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.left_out_votes import left_out_votes
from recollect.index_builder.settings import BuildSettings, EvaluateSettings
from recollect.service.bundle.bundle import open_bundle
from recollect.service.bundle.files import INSTANCE_COUNTS
from recollect.service.bundle.integrity import describe_files
from recollect.service.bundle.manifest import CompactionStep
from recollect.service.errors import BundleError
from recollect.service.memory.layers import LiveLabels
from recollect.service.memory_log.log import MemoryLog
from recollect.service.model import Model, open_model
from recollect.service.predictor.scoring import rank
from recollect.service.store.store import Store
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import Built

ALL_KEYS = 1_000
QUERY = "The court hears the goalkeeper"


@pytest.fixture(scope="module")
def repetitive(built: Built, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The topics, whose sentences occur one to three times, with a tiny BERT. The store has a bundle of all keys."""
    folder = tmp_path_factory.mktemp("repetitive")
    dataset, run, store = folder / "dataset", folder / "run", folder / "store"
    shutil.copytree(built.dataset, dataset)
    rows = [json.loads(line) for line in (dataset / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    repeated = [row | {"uid": f"{row['uid']}+{copy}"} for nth, row in enumerate(rows) for copy in range(1 + nth % 3)]
    (dataset / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in repeated), encoding="utf-8")
    encoder = str(tiny_run.parent / "encoder")
    write_run(TrainSettings(epochs=0, dataset=dataset, out=run, encoder=encoder, max_length=64))
    return Built(dataset, run, store, build_compact(run, store))


@pytest.fixture(scope="module")
def memory(repetitive: Built) -> Memory:
    return open_memory(repetitive.run / "memory")


@pytest.fixture(scope="module")
def merged(repetitive: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a bundle in which equal sentences are one key."""
    store = tmp_path_factory.mktemp("merged")
    build_compact(repetitive.run, store, "merge:1")
    return store


def build_compact(run: Path, store: Path, *methods: str, **flags: object) -> str:
    settings = {"index": "flat", "lexical": "off", "max_drop": 100, "activate": True} | flags
    return build(BuildSettings(run=run, store=store, compact=list(methods), **settings))  # type: ignore[arg-type]


def scores(model: Model, lambda_: float, **options: Any) -> dict[str, float]:
    labels = model.predict(QUERY, top_k=100, top_b=ALL_KEYS, lambda_=lambda_, **options)
    return {label.uid: label.score for label in labels}


def steps(memory: Memory, run: Path, folder: Path, *methods: str) -> list[CompactionStep]:
    compaction = compact(memory, run, Methods.of(methods), folder).compaction
    assert compaction is not None
    return compaction.steps


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_merged_duplicates_give_the_same_answers(repetitive: Built, merged: Path, lambda_: float) -> None:
    before, after = open_model(repetitive.store), open_model(merged)
    assert after.manifest.counts.instances < before.manifest.counts.instances
    assert scores(after, lambda_) == pytest.approx(scores(before, lambda_), abs=1e-6)


def test_merged_duplicates_give_the_same_answers_with_a_filter(repetitive: Built, merged: Path) -> None:
    before, after = (scores(open_model(store), 0.5, allow=["Law", "Football"]) for store in (repetitive.store, merged))
    assert after == pytest.approx(before, abs=1e-6)


def test_merged_duplicates_lose_no_quality_on_left_out_texts(
    repetitive: Built, memory: Memory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = steps(memory, repetitive.run, tmp_path, "merge:1")
    assert after.metrics == pytest.approx(before.metrics)
    assert after.instances < before.instances
    assert re.search(rf"merge:1 +{after.instances} +32 +[\d.]+ +{after.metrics['P@1']:.2f}", capsys.readouterr().err)


def test_left_out_instance_of_a_merged_key_leaves_the_other_instances(
    repetitive: Built, memory: Memory, tmp_path: Path
) -> None:
    served, rows = compact(memory, repetitive.run, Methods.of(["merge:1"]), tmp_path), np.arange(memory.plan.instances)
    whole = ServedMemory.whole(memory)
    assert len(served.memory.instance_keys) < len(rows)
    for (_, before, _), (_, after, _) in zip(
        left_out_votes(whole, rows, None), left_out_votes(served, rows, None), strict=True
    ):
        expected, found = rank(before, whole.values), rank(after, served.values)
        assert found.label.tolist() == expected.label.tolist()
        np.testing.assert_allclose(found.score, expected.score, atol=1e-6)


def test_merged_instances_have_equal_labels_and_similar_vectors(
    repetitive: Built, memory: Memory, tmp_path: Path
) -> None:
    served = compact(memory, repetitive.run, Methods.of(["merge:0.5"]), tmp_path)
    assert served.counts is not None
    assert served.counts.sum() == memory.plan.instances
    labels, kept_labels = (each.label_sets.to_csr(memory.plan.labels).toarray() for each in (memory, served.memory))
    for row, own in enumerate(served.own):
        assert labels[row].tolist() == kept_labels[own].tolist()
        assert memory.keys[row] @ served.memory.keys[own] >= 0.5 - 1e-5


def test_prune_leaves_each_label_its_floor(repetitive: Built, memory: Memory, tmp_path: Path) -> None:
    served = compact(memory, repetitive.run, Methods.of(["prune:2"]), tmp_path)
    left = np.bincount(served.memory.value_indices, minlength=memory.plan.labels)
    assert served.counts is not None
    assert served.counts.sum() == memory.plan.instances
    assert served.memory.plan.instances < memory.plan.instances
    assert (left >= np.minimum(served.label_counts, 2)).all()


def test_pca_answers_are_those_of_exact_vectors_after_the_rotation(
    repetitive: Built, memory: Memory, tmp_path: Path
) -> None:
    build_compact(repetitive.run, tmp_path, "pca:24")
    rotated, full = open_model(tmp_path), open_model(repetitive.store)
    rotation = fit_rotation(memory, 24)
    vector = rotate(full.predictor.encode([QUERY]), rotation)
    assert rotated.manifest.dim == 24
    np.testing.assert_allclose(rotated.predictor.encode([QUERY]), vector, atol=1e-6)
    similarities = vector @ rotate(memory.keys, rotation).T
    found = rotated.predictor.memory.searcher.search(vector, ALL_KEYS, 0.5)
    np.testing.assert_allclose(found.similarities[0], np.sort(similarities[0])[::-1], atol=1e-6)


def test_rotation_of_rank_many_dimensions_keeps_all_similarities(memory: Memory) -> None:
    keys = np.asarray(memory.keys, dtype=np.float32)
    rotated = rotate(keys, fit_rotation(memory, np.linalg.matrix_rank(keys)))
    np.testing.assert_allclose(rotated @ rotated.T, keys @ keys.T, atol=1e-5)


def test_all_methods_together_build_a_bundle_with_all_its_parts(repetitive: Built, tmp_path: Path) -> None:
    version = build_compact(repetitive.run, tmp_path, "prune:2", "merge:0.9", "pca:16", lexical="on")
    model = open_model(tmp_path)
    compaction = model.manifest.compaction
    assert compaction is not None
    assert [step.method for step in compaction.steps] == ["none", "pca:16", "merge:0.9", "prune:2"]
    assert compaction.steps[-1].instances == model.manifest.counts.instances
    assert any(label.because for label in model.predict(QUERY, explain=True))
    assert [check.name for check in model.manifest.checks if not check.passed] == []
    measured = evaluate(EvaluateSettings(dataset=repetitive.dataset, store=tmp_path))
    assert measured.version == version


def test_psp_of_a_compacted_bundle_uses_the_counts_of_the_run(repetitive: Built, merged: Path) -> None:
    before, after = (
        evaluate(EvaluateSettings(dataset=repetitive.dataset, store=store, top_b=[ALL_KEYS])).rows[0]
        for store in (repetitive.store, merged)
    )
    for row in (before, after):
        del row["intervals"]
    assert after == pytest.approx(before)


def test_build_fails_if_compaction_loses_too_much(repetitive: Built, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="points lost by --compact"):
        build_compact(repetitive.run, tmp_path, "pca:1", max_drop=0)
    assert list(Store(tmp_path).versions()) == []


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("zip", "expected merge, prune or pca:D, several separated by commas; found ['zip']"),
        ("pca", "a number of dimensions from 1"),
        ("pca:0", "a number of dimensions from 1"),
        ("merge:1.5", "a similarity above 0 and at most 1"),
        ("prune:many", "a number of instances from 1"),
        ("merge,merge:0.9", "each method once; found ['merge', 'merge:0.9']"),
    ],
)
def test_wrong_method_is_refused(flag: str, message: str) -> None:
    with pytest.raises(recollect.UsageError, match=re.escape(message)):
        recollect.build("run", store="store", compact=flag)


def test_more_dimensions_than_the_keys_have_are_refused(repetitive: Built, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="pca:32: expected fewer than the 32 dimensions"):
        build_compact(repetitive.run, tmp_path, "pca:32")


def test_count_that_is_not_positive_is_refused(merged: Path, tmp_path: Path) -> None:
    store = Store(merged)
    folder = tmp_path / "bundle"
    shutil.copytree(store.path(store.require_current()), folder)
    manifest = store.manifest(store.require_current())
    counts = np.load(folder / INSTANCE_COUNTS)
    counts[1] = 0
    np.save(folder / INSTANCE_COUNTS, counts)
    write_manifest(folder, manifest.model_copy(update={"files": describe_files(folder)}))
    with pytest.raises(BundleError, match=r"instance_counts.npy: row 1: expected a positive count, found 0"):
        open_bundle(folder)


@pytest.mark.parametrize("methods", [("merge:1",), ("prune:2", "merge:0.9", "pca:16")])
def test_compacted_bundle_takes_up_live_entries_and_answers_as_the_live_memory(
    repetitive: Built, tmp_path: Path, methods: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = build_compact(repetitive.run, tmp_path, *methods)
    model = open_model(tmp_path, live="write")
    bundle = model.predictor.bundle
    texts = [bundle.instances.texts[row] for row in (0, 5)]
    model.add(labels=[{"uid": "Whales", "text": "Whales"}])
    model.add(instances=[{"uid": f"new {text}", "text": text, "labels": ["Whales", "Law"]} for text in texts])
    model.remove(instances=[bundle.instances.uids[3]], labels=["Cooking"])
    live = {lambda_: scores(model, lambda_) for lambda_ in (0.0, 0.5, 1.0)}
    counts = label_counts(model)
    command = ["compact", str(tmp_path), "--index", "flat", "--max-drop", "100", "--activate"]
    assert recollect.main([*command, "--run", str(repetitive.run)]) == 2
    assert f"--run: expected none, because version {before} was built with --compact" in capsys.readouterr().err
    assert recollect.main(command) == 0, capsys.readouterr().err
    after = open_model(tmp_path)
    assert after.version != before
    assert after.manifest.compaction is not None
    assert not MemoryLog.of(Store(tmp_path), after.manifest).read()
    assert label_counts(after) == counts
    for lambda_, expected in live.items():
        assert scores(after, lambda_) == pytest.approx(expected, abs=1e-6)


def label_counts(model: Model) -> dict[str, int]:
    """The number of instances of each label."""
    labels = model.predictor.memory.labels
    present = labels.present() if isinstance(labels, LiveLabels) else np.ones(len(labels), dtype=bool)
    return {labels.uids[row]: int(labels.counts[np.array([row])][0]) for row in np.flatnonzero(present).tolist()}
