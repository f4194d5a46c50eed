"""Answers of a bundle with a lexical index: votes by words have a share in each score, and explanations name it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.answers import Answer
from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import LEXICAL_FILES, MANIFEST
from recollect.core.bundle.strings import StringTable
from recollect.core.errors import BundleError
from recollect.core.neighbours import join_parts
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from recollect.core.search.filters import AdmittedKeys
from recollect.core.words.index import TOP_WORDS, write_lexical_index
from recollect.core.words.terms import Words
from tests.service.stores import edit_bundle, rehash

QUERIES = ["Who must pay tax on the sale of a house", "Galaxies", "law and football", "音楽"]
WEIGHT = 0.3


def texts(table: StringTable) -> list[str]:
    return [table[row] for row in range(len(table))]


@pytest.fixture(scope="module")
def folder(built: Any, predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a lexical index."""
    folder = tmp_path_factory.mktemp("words") / "bundle"
    shutil.copytree(built.store / "bundles" / built.version, folder)
    bundle = predictor.bundle
    write_lexical_index(folder, texts(bundle.instances.texts), texts(bundle.labels.texts))
    edit_bundle(folder, rehash)
    edit_bundle(folder, lambda _, manifest: manifest["defaults"].update(word_weight=WEIGHT))
    return folder


@pytest.fixture(scope="module")
def worded(folder: Path) -> Predictor:
    return Predictor.open(open_bundle(folder), threads=1)


def ask(predictor: Predictor, query: str, **chosen: Any) -> Answer:
    return predictor.predict([query], resolve_options(predictor.defaults, **chosen)).answers[0]


def scores(predictor: Predictor, query: str, **chosen: Any) -> np.ndarray:
    found = np.zeros(len(predictor.bundle.labels))
    for label in ask(predictor, query, top_k=100, **chosen).labels:
        found[label.position] = label.score
    return found


def votes_by_words(predictor: Predictor, query: str, lambda_: float) -> np.ndarray:
    """The votes by words by the written formula, with a dense matrix of values."""
    assert predictor.memory.words is not None
    values = predictor.memory.values
    dense = np.zeros((values.instances + values.labels, values.labels))
    for row in range(values.instances):
        dense[row, values.gather(np.array([row]))[1]] = lambda_
    dense[values.instances :] = (1 - lambda_) * np.eye(values.labels)
    lists = predictor.memory.words.search(Words.of([query]))
    found = join_parts(*lists, values.instances, TOP_WORDS, lambda_)
    present = found.keys[0] >= 0
    cubes = found.similarities[0, present].astype(float) ** 3
    votes: np.ndarray = cubes / max(cubes.sum(), 1e-300) @ dense[found.keys[0, present]]
    return votes


def mixed_score(worded: Predictor, vectors: np.ndarray, query: str, lambda_: float) -> np.ndarray:
    """The score of every label: the scores of the vectors if no key shares a word with the query."""
    by_words = votes_by_words(worded, query, lambda_)
    return (1 - WEIGHT) * vectors + WEIGHT * by_words if by_words.any() else vectors


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("lambda_", [0.0, 0.4, 1.0])
def test_score_is_the_weighted_mean_of_votes_by_vectors_and_by_words(
    worded: Predictor, predictor: Predictor, query: str, lambda_: float
) -> None:
    expected = mixed_score(worded, scores(predictor, query, lambda_=lambda_), query, lambda_)
    np.testing.assert_allclose(scores(worded, query, lambda_=lambda_), expected, atol=1e-9)


@pytest.mark.parametrize("query", ["zzz", "?!", "Zwiebelsuppe"])
def test_query_without_a_known_word_gets_the_score_of_the_vectors(
    worded: Predictor, predictor: Predictor, query: str
) -> None:
    np.testing.assert_array_equal(scores(worded, query), scores(predictor, query))


@pytest.mark.parametrize("allow", [None, ("Taxation", "Law", "Football")])
def test_terms_by_words_are_named_and_all_terms_add_up_to_the_score(worded: Predictor, allow: Any) -> None:
    for query in QUERIES:
        for label in ask(worded, query, explain=True, allow=allow).labels:
            assert label.because is not None
            assert sum(reason.share for reason in label.because) == pytest.approx(label.score, abs=1e-9)
            assert {reason.by for reason in label.because} <= {None, "words"}
    best = ask(worded, "income tax", explain=True, allow=allow).labels[0].to_dict()
    by_words = [reason for reason in best["because"] if reason.get("by") == "words"]
    assert "A bill to lower the income tax of small farms" in [reason["text"] for reason in by_words]
    assert all("by" not in reason for reason in best["because"] if reason not in by_words)


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("top_b", [3, 200])
def test_filtered_labels_get_votes_by_words_too(
    worded: Predictor, predictor: Predictor, monkeypatch: pytest.MonkeyPatch, cheap: bool, top_b: int
) -> None:
    monkeypatch.setattr(AdmittedKeys, "is_cheap", lambda *_: cheap)
    for query in QUERIES:
        for chosen in ({"allow": ("Law", "音楽", "Never seen")}, {"deny": ("Taxation",)}):
            options: dict[str, Any] = {**chosen, "lambda_": 0.4, "top_b": top_b}
            admitted = scores(predictor, query, lambda_=0.4, top_b=10_000, **chosen) > 0
            expected = mixed_score(worded, scores(predictor, query, **options), query, 0.4)
            np.testing.assert_allclose(scores(worded, query, **options), admitted * expected, atol=1e-9)


@pytest.mark.parametrize("name", sorted(LEXICAL_FILES))
def test_bundle_with_an_incomplete_lexical_index_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(folder / MANIFEST, tmp_path)
    edit_bundle(tmp_path, lambda _, manifest: manifest["files"].pop(name))
    with pytest.raises(BundleError, match=f"missing or unexpected: {name}"):
        open_bundle(tmp_path)
