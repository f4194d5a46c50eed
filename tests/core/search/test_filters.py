"""Answers with label filters equal the dense formula in float64 over all keys of a memory."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.answers import Answer
from recollect.core.bundle.bundle import open_bundle
from recollect.core.errors import QueryError
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from tests.index_builder.vectors import clustered_keys, unit
from tests.service.stores import edit_bundle, light_encoder

QUERY = "Who must pay tax on the sale of a house"
DIM = 8

Open = Callable[..., Predictor]


@pytest.fixture(scope="module")
def open_memory(built: Any, write_bundle: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Opens a bundle with the given keys and votes, and with a tiny encoder."""

    def open_(
        instance_keys: np.ndarray, label_keys: np.ndarray, votes: Sequence[Sequence[int]], kind: str
    ) -> Predictor:
        folder = tmp_path_factory.mktemp("filters") / "bundle"
        write_bundle(folder, instance_keys=instance_keys, label_keys=label_keys, votes=votes, kind=kind)
        shutil.copy(built.store / "bundles" / built.version / "tokenizer.json", folder)
        edit_bundle(folder, light_encoder)
        return Predictor.open(open_bundle(folder), threads=1)

    return open_


def random_votes(rng: np.random.Generator, instances: int, labels: int) -> list[list[int]]:
    """Random labels: up to four for each instance; the last label belongs to no instance."""
    return [np.unique(rng.integers(0, labels - 1, size=rng.integers(0, 5))).tolist() for _ in range(instances)]


class Dense:
    """A memory as dense arrays in float64, and the predictor of its bundle."""

    def __init__(self, open_memory: Open, instances: int, labels: int, dim: int, kind: str) -> None:
        rng = np.random.default_rng(3)
        keys = clustered_keys(instances + labels, dim)
        votes = random_votes(rng, instances, labels)
        self.predictor = open_memory(keys[:instances], keys[instances:], votes, kind)
        self.instances, self.labels = instances, labels
        self.keys = keys.astype(np.float64)
        self.votes = np.zeros((instances + labels, labels))
        for row, labels_of in enumerate(votes):
            self.votes[row, labels_of] = 1
        self.votes[instances:] = np.eye(labels)

    def answer(self, query: str, admitted: Sequence[int], lambda_: float, temperature: float, top_b: int) -> np.ndarray:
        """The score of every label by the dense formula; NaN for a label that is not admitted or gets no vote."""
        voting = np.flatnonzero([lambda_ > 0] * self.instances + [lambda_ < 1] * self.labels)
        similarities = self.keys @ self.predictor.encode([query])[0].astype(np.float64)
        found = voting[np.argsort(-similarities[voting], kind="stable")[:top_b]]
        voters = voting[self.votes[np.ix_(voting, admitted)].any(axis=1)]
        keys = np.union1d(found, voters)
        weights = np.exp((similarities[keys] - similarities[keys].max()) / temperature)
        weights *= np.where(keys < self.instances, lambda_, 1 - lambda_) / weights.sum()
        scores = np.full(self.labels, np.nan)
        rankable = [label for label in admitted if self.votes[voting, label].any()]
        scores[rankable] = weights @ self.votes[np.ix_(keys, rankable)]
        return scores


def uids(labels: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"label {label}" for label in labels)


def ask(predictor: Predictor, query: str = QUERY, **chosen: Any) -> Answer:
    return predictor.predict([query], resolve_options(predictor.defaults, **chosen)).answers[0]


def agrees(answer: Answer, scores: np.ndarray, top_k: int, tolerance: float) -> None:
    """Check that an answer has the best k labels and their scores; nearly equal scores may change places."""
    found = [label.position for label in answer.labels]
    assert len(found) == len(set(found)) == min(top_k, int(np.isfinite(scores).sum()))
    assert answer.exhausted == (np.isfinite(scores).sum() < top_k)
    np.testing.assert_allclose([label.score for label in answer.labels], scores[found], rtol=0, atol=tolerance)
    best = np.sort(scores[np.isfinite(scores)])[::-1][:top_k]
    np.testing.assert_allclose([label.score for label in answer.labels], best, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def dense(open_memory: Open) -> Callable[[str], Dense]:
    """Builds a memory of 1,000 instances and 40 labels with an index of the given kind; each memory is built once."""
    return functools.cache(lambda kind: Dense(open_memory, 1_000, 40, 32, kind))


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        ("flat", 1e-5),
        ("hnsw", 2e-3),
        ("ivf", 2e-3),
        ("IVF20,Flat", 2e-3),
        ("IVF20,PQ16x4fs,Refine(SQ8)", 2e-3),
        ("RR32,IVF20,PQ16x4fs,RFlat", 2e-3),
        ("RR32,SQ8", 2e-3),
        ("IVF20,RaBitQ4", 2e-2),
    ],
)
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_answer_with_few_allowed_labels_equals_a_softmax_over_all_keys_for_every_kind_of_index(
    dense: Callable[[str], Dense], kind: str, tolerance: float, lambda_: float
) -> None:
    memory = dense(kind)
    far = np.argsort(np.nan_to_num(memory.answer(QUERY, range(40), lambda_, 0.5, 10)))[:5].tolist()
    for admitted in (far, far[:1], list(range(40))):
        chosen = {"lambda_": lambda_, "temperature": 0.5, "top_b": 10, "top_k": 40}
        scores = memory.answer(QUERY, sorted(admitted), lambda_, 0.5, 10)
        agrees(ask(memory.predictor, allow=uids(admitted), **chosen), scores, 40, tolerance)


@pytest.fixture(scope="module")
def far(open_memory: Open) -> Predictor:
    """A memory: 12,000 instances near the query have label 0, and one dissimilar instance has label 1."""
    query = open_memory(np.eye(DIM, dtype=np.float32), np.eye(3, DIM, dtype=np.float32), [[]] * DIM, "flat")
    vector = query.encode([QUERY])[0]
    noise = np.random.default_rng(5).normal(size=(12_000, DIM)) / 4
    keys = unit(np.concatenate([vector + noise, -vector[None]]))
    labels = unit(np.stack([vector, -vector, -vector]) + np.eye(3, DIM) / 10)
    return open_memory(keys, labels, [*([[0]] * 12_000), [1]], "flat")


@pytest.mark.parametrize("lambda_", [0.5, 1.0])
def test_label_is_found_if_ten_thousand_keys_are_nearer_than_its_only_voter(far: Predictor, lambda_: float) -> None:
    for filter_ in ({"allow": uids([1])}, {"deny": uids([0, 2])}, {"deny": uids([0]), "allow": uids([0, 1])}):
        answer = ask(far, lambda_=lambda_, top_k=1, **filter_)
        assert ([label.uid for label in answer.labels], answer.exhausted) == (["label 1"], False)
        assert ask(far, lambda_=lambda_, top_k=2, **filter_).exhausted


@pytest.mark.parametrize("lambda_", [0.5, 1.0])
def test_label_with_one_distant_voter_is_found_together_with_a_frequent_label(
    far: Predictor, monkeypatch: pytest.MonkeyPatch, lambda_: float
) -> None:
    monkeypatch.setattr("recollect.core.search.filters.MAX_CHEAP_VOTES", 11_000)
    answer = ask(far, lambda_=lambda_, allow=uids([0, 1]), top_k=2)
    assert [label.uid for label in answer.labels] == ["label 0", "label 1"]
    assert not answer.exhausted


def test_explanation_with_too_many_terms_is_refused(far: Predictor) -> None:
    with pytest.raises(QueryError, match=r"explain: expected at most 8,192 .*, found 12,00[0-9]; set a smaller top_k"):
        ask(far, lambda_=1.0, allow=uids([0, 1]), top_k=2, explain=True)
