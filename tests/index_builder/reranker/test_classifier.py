"""Linear classifiers of words: their weights, and a run in which a word decides about each label."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

import recollect
from recollect.core.errors import BundleError
from recollect.core.reranker.classifier import TermVectors
from recollect.core.words.terms import Words
from recollect.index_builder.build import build
from recollect.index_builder.errors import BuildError
from recollect.index_builder.live_memory.compact import compact
from recollect.index_builder.reranker.classifier import fit_classifier
from recollect.index_builder.settings import BuildSettings, CompactSettings
from recollect.model import open_model
from recollect.trainer.memory.memory import Memory, open_memory, write_defaults
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import made_once
from tests.index_builder.reranker.test_examples import INSTANCES, LABELS, random_memory, texts_of
from tests.tiny_runs import write_tiny_encoder
from tests.trainer.test_tune import sets_of

CODES = 10
QUERY = "code3x0 code5x1 code3x4 code7x2 code3x3 code3x5 code1x0 code2x2"


def features(texts: list[str]) -> np.ndarray:
    """The TF-IDF vectors of all texts as a dense table, with a constant; their mean squared length is 1."""
    vectors = TermVectors.of(Words.of(texts))
    terms, term = np.unique(vectors.terms, return_inverse=True)
    table = np.zeros((len(texts), len(terms)))
    table[np.repeat(np.arange(len(texts)), np.diff(vectors.offsets)), term] = vectors.weights
    found = (table > 0).sum(axis=0)
    table *= np.where(found < 2, 0, np.where(terms == 0, 1, np.log1p(len(texts) / found)))
    return table * np.sqrt(len(texts) / (table**2).sum())


def reference(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The weights with the least squared hinge loss plus half their squared length."""

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        hinge = np.maximum(0, 1 - signs * (rows @ weights))
        return float(weights @ weights / 2 + (hinge**2).sum()), weights - 2 * rows.T @ (signs * hinge)

    return np.asarray(optimize.minimize(loss, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B").x)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    found = random_memory(tmp_path, 0)  # so many keys vote that each text is an example of each label
    write_defaults(found.folder, found.plan, {**found.defaults, "lambda": 0.5, "top_b": 2 * (INSTANCES + LABELS)})
    return open_memory(found.folder)


def test_scores_are_those_of_the_least_squared_hinge_loss(memory: Memory) -> None:
    texts, absent = texts_of(memory, "instances"), np.arange(0, INSTANCES, 5)
    classifier = fit_classifier(memory, texts, absent, threads=2)
    labels = np.tile(np.arange(LABELS), INSTANCES)
    found = classifier.scores(Words.of(texts), np.arange(0, len(labels) + 1, LABELS), labels).reshape(-1, LABELS)
    rows, sets, present = features(texts), sets_of(memory), np.setdiff1d(np.arange(INSTANCES), absent)
    for label in range(LABELS):
        signs = np.array([1.0 if label in own else -1.0 for own in sets])
        if (signs[present] > 0).any():
            np.testing.assert_allclose(found[:, label], rows @ reference(rows[present], signs[present]), atol=0.1)
        else:
            assert np.isnan(found[:, label]).all()


def write_codes(folder: Path) -> Path:
    """Write a dataset: each text has two of the six words of its label, and twelve words of any labels."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines: dict[str, list[dict[str, object]]] = {"train": [], "test": []}
    for number in range(1_200):
        label = int(rng.integers(CODES))
        own = [f"code{label}x{nth}" for nth in rng.choice(6, size=2, replace=False)]
        others = [f"code{rng.integers(CODES)}x{rng.integers(6)}" for _ in range(12)]
        row = {"uid": f"i{number}", "text": " ".join(rng.permutation([*own, *others])), "labels": [str(label)]}
        lines["test" if number % 10 == 0 else "train"].append(row)
    lines["labels"] = [{"uid": str(label), "text": f"name {label}"} for label in range(CODES)]
    for name, content in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return folder


def rank_codes(folder: Path) -> None:
    dataset, run = write_codes(folder / "dataset"), folder / "run"
    encoder = write_tiny_encoder(folder / "encoder", "bert")
    write_run(TrainSettings(epochs=0, dataset=dataset, out=run, encoder="static", static_from=str(encoder)))
    assert recollect.rank(run, threads=1)["kept"]
    build(BuildSettings(run=run, store=folder / "store", index="flat", activate=True))


@pytest.fixture
def codes(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_once(tmp_path_factory, "codes", rank_codes), tmp_path / "codes"))


def terms_of(store: Path, query: str) -> dict[str, float]:
    """The terms of the logit of label 3, which is the first one, by feature."""
    first = open_model(store).predict(query, top_k=1, explain=True)[0]
    assert first.uid == "3"
    return {term.feature: term.log_odds for term in first.ranked_by or []}


def test_words_that_decide_are_learnt_and_survive_a_compaction(codes: Path) -> None:
    store = codes / "store"
    assert open_model(store).manifest.has_classifier
    assert terms_of(store, QUERY)["classifier"] > 0
    new = {"uid": "new", "text": "another name"}
    live = recollect.open(store, live="write")
    live.add(labels=[new], instances=[{"uid": "live", "text": "code7x1 code5x2", "labels": ["new"]}])
    live.remove(labels=["2"])  # the labels after it move
    compact(CompactSettings(store=store, index="flat", activate=True))
    assert open_model(store).manifest.counts.labels == CODES
    assert terms_of(store, QUERY)["classifier"] > 0


def test_classifiers_are_left_out_on_request(codes: Path) -> None:
    recollect.rank(codes / "run", threads=1, classifier="off")
    version = build(BuildSettings(run=codes / "run", store=codes / "store", index="flat"))
    assert not open_model(codes / "store", version).manifest.has_classifier


@pytest.mark.parametrize("name", ["offsets", "terms", "weights"])
def test_damaged_classifiers_are_refused(codes: Path, name: str) -> None:
    np.save(codes / "run" / "memory" / "ranker" / f"classifier.{name}.npy", np.zeros(3))
    with pytest.raises(BuildError, match=rf"classifier\.{name}\.npy: expected .* run `recollect rank` again"):
        build(BuildSettings(run=codes / "run", store=codes / "other", index="flat"))
    path = next((codes / "store").rglob(f"classifier.{name}.npy"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError):
        open_model(codes / "store")
