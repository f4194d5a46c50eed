"""`train --no-normalise`: the scores are softmax(x z / tau) of vectors that keep their lengths, computed in float64."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import recollect
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError
from recollect.index_builder.settings import BuildSettings
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.left_out import instance_neighbours, label_neighbours
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import TOPICS, write_topics
from tests.formula import label_scores
from tests.processes import call
from tests.tiny_runs import write_tiny_encoder

TAU, TOP_B = 1.0, 12
QUERIES = [*(sentences[-1] for sentences in TOPICS.values() if sentences), "Never seen", "x", "garlic " * 9]
# Less than a hundredth of any score that decides the order of the labels.
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


class Trained(NamedTuple):
    run: Path
    store: Path
    memory: Memory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run without normalisation, and a store with its bundle."""
    folder = tmp_path_factory.mktemp("lengths")
    write_topics(folder / "dataset")
    write_tiny_encoder(folder / "encoder", "bert")
    flags = ["--encoder", folder / "encoder", "--train", "full", "--method", "dexml", "--no-normalise"]
    lengths = ["--max-length", 64, "--batch-size", 7, "--epochs", 3, "--learning-rate", 1e-3]
    call("train", folder / "dataset", "--out", folder / "run", *flags, *lengths)
    call("build", folder / "run", "--store", folder / "store", "--index", "IVF1,Flat", "--lexical", "off", "--activate")
    return Trained(folder / "run", folder / "store", open_memory(folder / "run" / "memory"))


def raw(run: Path, texts: list[str], side: Any = "queries") -> np.ndarray:
    """The vectors of texts by the trained encoder."""
    encoder = load_checkpoint(run / "checkpoint", "cpu")
    length = encoder.config.max_length if side == "queries" else encoder.config.label_max_length
    vectors = encoder.encode(texts, length, side=side).astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    assert lengths.min() < 0.9 * lengths.max(), "the lengths differ"
    return vectors


def texts(run: Path, name: str) -> list[str]:
    return [json.loads(line)["text"] for line in (run / "memory" / name).read_text().splitlines()]


def expected_scores(
    trained: Trained, lambda_: float, more: dict[str, list[int]] | None = None, new_labels: tuple[str, ...] = ()
) -> np.ndarray:
    """The score of each label for each query, with `more` instances and the positions of their labels."""
    more = more or {}
    instances = [*texts(trained.run, "instances.jsonl"), *more]
    labels = [*texts(trained.run, "labels.jsonl"), *new_labels]
    y = np.zeros((len(instances), len(labels)))
    known = trained.memory.label_sets.to_csr(trained.memory.plan.labels).toarray()
    y[: known.shape[0], : known.shape[1]] = known
    for row, own in enumerate(more.values(), start=known.shape[0]):
        y[row, own] = 1
    keys = raw(trained.run, instances), raw(trained.run, labels, "labels")
    return label_scores(raw(trained.run, QUERIES), *keys, y, lambda_, TAU, TOP_B)


def served_scores(model: Any, uids: list[str], **options: Any) -> np.ndarray:
    answers = model.predict(QUERIES, top_b=TOP_B, top_k=len(uids), **options)
    found = [{label.uid: label.score for label in labels} for labels in answers]
    return np.array([[each.get(uid, 0.0) for uid in uids] for each in found])


# ---- The memory ----


def test_memory_has_the_vectors_of_the_encoder_and_the_temperature_of_the_loss(trained: Trained) -> None:
    memory, run = trained.memory, trained.run
    written = np.concatenate([raw(run, texts(run, "instances.jsonl")), raw(run, texts(run, "labels.jsonl"), "labels")])
    np.testing.assert_allclose(memory.keys, written, rtol=1e-5, atol=1e-5)
    assert memory.defaults["temperature"] == TAU


def test_queries_are_left_out_of_the_memory_exactly(trained: Trained) -> None:
    memory, rows = trained.memory, np.arange(0, trained.memory.plan.instances, 3)
    x, z = memory.instance_keys.astype(np.float64), memory.keys[memory.plan.instances :]
    near = instance_neighbours(memory, rows, 5)
    for row, similarities in zip(rows, near.similarities, strict=True):
        others = np.delete(x @ x[row], row)
        np.testing.assert_allclose(similarities, np.sort(others)[::-1][:5], rtol=1e-5)
    labels = label_neighbours(memory, rows, 0.0, len(z))
    np.testing.assert_allclose(labels.similarities, -np.sort(-(x[rows] @ z.T), axis=1), rtol=1e-5)


def test_tune_tries_multiples_of_the_temperature(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.run, tmp_path / "run")
    tuned = recollect.tune(tmp_path / "run", lambda_=[0, 0.5], top_b=[12])
    before = trained.memory.defaults["temperature"]
    assert tuned["temperature"] / before == pytest.approx(
        min((0.5, 0.75, 1, 1.25, 1.75, 2.5), key=lambda each: abs(each - tuned["temperature"] / before))
    )


# ---- The service ----


@pytest.mark.parametrize("lambda_", [0, 0.3, 1])
def test_served_scores_equal_the_softmax_of_the_products(trained: Trained, lambda_: float) -> None:
    """The index has lists; a compacted memory has a flat index."""
    model = recollect.open(trained.store)
    scores = served_scores(model, list(TOPICS), lambda_=lambda_)
    np.testing.assert_allclose(scores, expected_scores(trained, lambda_), **CLOSE)
    assert not model.manifest.encoder.normalised


def test_live_entries_vote_as_entries_of_the_memory_do(trained: Trained) -> None:
    model = recollect.open(trained.store)
    model.add(labels=[{"uid": "Gardening", "text": "Gardening"}])
    model.add(instances=[{"uid": "new", "text": "garlic grows in a garden", "labels": ["Gardening", "Cooking"]}])
    found = served_scores(model, [*TOPICS, "Gardening"], lambda_=0.4)
    cooking = list(TOPICS).index("Cooking")
    more = {"garlic grows in a garden": [cooking, len(TOPICS)]}
    np.testing.assert_allclose(found, expected_scores(trained, 0.4, more, ("Gardening",)), **CLOSE)


def test_rejected_label_has_no_score_for_the_same_query(trained: Trained) -> None:
    model = recollect.open(trained.store)
    best = model.predict(QUERIES[0])[0]
    model.learn(QUERIES[0], best.uid, relevant=False)
    assert best.uid not in {label.uid for label in model.predict(QUERIES[0]) if label.score > 1e-6}


def test_compacted_memory_answers_as_the_live_memory(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.store, tmp_path / "store")
    model = recollect.open(tmp_path / "store", live="write")
    model.add(instances=[{"uid": "new", "text": "garlic grows in a garden", "labels": ["Cooking"]}])
    live = served_scores(model, list(TOPICS), lambda_=0.4)
    for number, given in enumerate((["--run", trained.run], [])):  # keys of the run, and keys of the bundle
        store = tmp_path / f"store {number}"
        shutil.copytree(tmp_path / "store", store)
        call("compact", store, *given, "--index", "flat", "--activate")
        compacted = served_scores(recollect.open(store), list(TOPICS), lambda_=0.4)
        np.testing.assert_allclose(compacted, live, **CLOSE)


@pytest.mark.parametrize("index", ["hnsw", "HNSW8,Flat"])
def test_graph_is_refused_because_short_vectors_get_no_links(trained: Trained, tmp_path: Path, index: str) -> None:
    with pytest.raises(BuildError, match=f"--index {index}: expected unit vectors, .* use auto, flat or ivf"):
        build(BuildSettings(run=trained.run, store=str(tmp_path), index=index))


def test_exported_encoder_of_lower_precision_keeps_lengths(trained: Trained, tmp_path: Path) -> None:
    call("build", trained.run, "--store", tmp_path, "--precision", "fp16", "--activate", "--force")
    found, vectors = recollect.open(tmp_path).predictor.encode(QUERIES), raw(trained.run, QUERIES)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.linalg.norm(vectors, axis=1), rtol=0.02)


# ---- Refused combinations ----


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": "adapter"}, "expected --train full or --epochs 0, .* found --train adapter"),
        ({"method": "prime"}, "expected a method without a head, .* found --method prime"),
        ({"method": "supcon"}, "expected random batches, .* found --method supcon"),
        ({"query_encoder": "static"}, "expected --query-encoder same, .* --query-encoder static"),
    ],
)
def test_parts_that_need_unit_vectors_are_refused(given: dict[str, Any], message: str) -> None:
    given = {"train": "full", "method": "dexml", "normalise": False} | given
    with pytest.raises(TrainingError, match=f"--no-normalise: {message}"):
        TrainSettings(dataset=Path("d"), out=Path("o"), **given)


def test_training_continues_from_such_a_run_without_normalisation(trained: Trained, tmp_path: Path) -> None:
    settings = TrainSettings(dataset=Path("d"), out=tmp_path, method="dexml", **{"from": trained.run})
    assert (settings.normalise, settings.train) == (False, "full")
