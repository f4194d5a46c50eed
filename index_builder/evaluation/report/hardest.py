"""The hardest labels and texts of a test split, with explanations of the errors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from recollect.index_builder.evaluation.predictions import GroundTruth, Predictions, Setting
from recollect.service.predictor.answers import ScoredLabel
from recollect.service.predictor.predictor import Predictor
from recollect.trainer.data.split import Split
from recollect.trainer.metrics import ndcg_at

_LABELS, _QUERIES = 20, 12
# A label needs this number of test texts, because the recall of a label with one text is 0 or 1.
_LEAST_TEXTS = 3
_DEPTH_OF_RECALL, _DEPTH_OF_NDCG = 10, 5


@dataclass(frozen=True)
class HardLabel:
    """A label that the answers rarely contain.

    Attributes:
        label: Its position.
        true: Number of test texts that have it.
        found: Number of these texts whose first ten labels contain it.
        instead: The most frequent first label of the other ones; None if they have no answer.
        missed: One of the other ones.
    """

    label: int
    true: int
    found: int
    instead: int | None
    missed: str


@dataclass(frozen=True)
class HardQuery:
    """A test text whose answer is wrong.

    Attributes:
        text: The text.
        ndcg: Its nDCG@5 in percent.
        answers: Its first five labels and its other true labels among the first 100: the rank from 1, the label with
            its votes, and whether it is true.
        missing: The true labels that are not among the first 100.
    """

    text: str
    ndcg: float
    answers: list[tuple[int, ScoredLabel, bool]]
    missing: list[int]


def hardest_labels(found: Predictions, truth: GroundTruth, test: Split) -> list[HardLabel]:
    """The labels with the lowest R@10, and among equals the labels with the most texts without them."""
    pairs = truth.relevance.tocsc()
    totals = np.diff(pairs.indptr)
    reached = found.labels[:, :_DEPTH_OF_RECALL][found.hit[:, :_DEPTH_OF_RECALL]]
    counts = np.bincount(reached, minlength=truth.labels)
    candidates = np.flatnonzero((totals >= _LEAST_TEXTS) & (counts < totals))
    share = counts[candidates] / totals[candidates]
    chosen = candidates[np.lexsort((-totals[candidates], share))][:_LABELS]
    return [
        _describe(label, pairs.indices[pairs.indptr[label] : pairs.indptr[label + 1]], found, test)
        for label in chosen.tolist()
    ]


def _describe(label: int, queries: Int[np.ndarray, " query"], found: Predictions, test: Split) -> HardLabel:
    missed = queries[~(found.labels[queries, :_DEPTH_OF_RECALL] == label).any(axis=1)]
    first = Counter(each for each in found.labels[missed, 0].tolist() if each >= 0).most_common(1)
    text = test.entries.texts[int(missed[0])].as_py()
    return HardLabel(label, len(queries), len(queries) - len(missed), first[0][0] if first else None, text)


def hardest_queries(
    predictor: Predictor, setting: Setting, found: Predictions, truth: GroundTruth, test: Split
) -> list[HardQuery]:
    """The texts with the lowest nDCG@5, and among equals those whose first label has the highest score.

    A wrong label with a high score is the most useful example: the memory has a reason for it, or the truth is
    incomplete.
    """
    with_labels = np.flatnonzero(found.sizes > 0)
    ndcg = 100 * ndcg_at(found.hit, found.sizes, _DEPTH_OF_NDCG)
    order = np.lexsort((-found.first_scores[with_labels], ndcg[with_labels]))
    chosen = [int(row) for row in with_labels[order][:_QUERIES] if ndcg[row] < 100]
    texts = [test.entries.texts[row].as_py() for row in chosen]
    if not chosen:
        return []
    options = dataclasses.replace(setting.options(), explain=True)
    answers = predictor.predict(texts, options).answers
    hardest = []
    for row, text, answer in zip(chosen, texts, answers, strict=True):
        true = set(truth.relevance[[row]].indices.tolist())
        filtered = truth.filtered(row)
        ranked = list(enumerate((each for each in answer.labels if each.position not in filtered), start=1))
        shown = [
            (rank, each, each.position in true)
            for rank, each in ranked
            if rank <= _DEPTH_OF_NDCG or each.position in true
        ]
        missing = sorted(true - {each.position for _, each in ranked})
        hardest.append(HardQuery(text, float(ndcg[row]), shown, missing))
    return hardest
