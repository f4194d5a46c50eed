"""Fit a linear classifier of each label to the terms of training texts, as a feature of the ranker.

The classifier of a label separates the texts that have it from other texts for which the votes of their neighbours find
it: the ranker decides between these (squared hinge loss, dual coordinate descent; Hsieh et al., ICML 2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numba
import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.bundle.values import Values
from recollect.core.reranker.classifier import CONSTANT, ONE, Classifier, TermVectors
from recollect.core.scoring import vote
from recollect.core.system.console import progress_bar
from recollect.core.words.terms import Words
from recollect.index_builder.left_out_votes import default_voting, left_out_votes
from recollect.trainer.memory.memory import Memory

# Maximum number of instances: each of them is compared with all others.
MOST_INSTANCES = 100_000
# Number of labels of which a text is an example, besides its own labels: those with the most votes.
_CANDIDATES = 100
# A term of fewer texts has no weight.
_MIN_TEXTS = 2
# Weight of the loss of an example, against half the squared length of the weights of a label.
_LOSS_WEIGHT = 1.0
_EPOCHS = 10
# Maximum number of weights of a label: the largest ones, and the constant.
_MOST_WEIGHTS = 200
_BLOCK_TEXTS, _BLOCK_LABELS = 4_096, 64


class _Examples(NamedTuple):
    """The texts of each label, `offsets[i]` to `offsets[i + 1]` of label i, and whether they have the label."""

    offsets: Int[np.ndarray, " offset"]
    text: Int[np.ndarray, " example"]
    true: Bool[np.ndarray, " example"]


def fit_classifier(memory: Memory, texts: Sequence[str], absent: Int[np.ndarray, " row"], threads: int) -> Classifier:
    """Fit the classifiers of all labels to the instances of a memory, without those in the rows `absent`."""
    present = np.ones(len(texts), dtype=bool)
    present[absent] = False
    blocks = (texts[start : start + _BLOCK_TEXTS] for start in range(0, len(texts), _BLOCK_TEXTS))
    vectors = _join([TermVectors.of(Words.of(block)) for block in blocks])
    terms, term, counts = np.unique(vectors.terms, return_inverse=True, return_counts=True)
    factors = np.where(counts < _MIN_TEXTS, 0, np.log1p(len(texts) / counts))
    factors[terms == CONSTANT] = 1
    values, labels = vectors.weights * factors[term], memory.plan.labels
    scale = np.sqrt(len(texts) / np.square(values).sum())  # the squared length of a text is 1 on average
    kept, factors = values > 0, factors * scale
    offsets, term, values = np.append(0, np.cumsum(kept))[vectors.offsets], term[kept], values[kept] * scale
    examples = _examples(memory, present)

    def fit(first: int) -> list[tuple[np.ndarray, np.ndarray]]:
        weights, found = np.zeros(len(terms)), []
        for label in range(first, min(first + _BLOCK_LABELS, labels)):
            own = slice(examples.offsets[label], examples.offsets[label + 1])
            signs = np.where(examples.true[own], 1.0, -1.0)
            found.append(_largest(*_fit_label(examples.text[own], signs, offsets, term, values, factors, weights)))
        return found

    rows: list[tuple[np.ndarray, np.ndarray]] = []
    with ThreadPoolExecutor(threads) as pool, progress_bar(labels, "label", "classifiers") as bar:
        for found in pool.map(fit, range(0, labels, _BLOCK_LABELS)):
            rows += found
            bar.update(len(found))
    ends = np.cumsum([0, *(len(own) for own, _ in rows)])
    own, weights = (np.concatenate(part) for part in zip(*rows, strict=True))
    limit = np.iinfo(np.int16).max
    return Classifier(
        ends, terms[own].astype(np.uint32), np.clip(np.rint(weights * ONE), -limit, limit).astype(np.int16)
    )


def _join(parts: Sequence[TermVectors]) -> TermVectors:
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=False)]
    terms, weights = (np.concatenate(column) for column in list(zip(*parts, strict=True))[1:])
    return TermVectors(np.concatenate([*offsets, ends[-1:]]), terms, weights)


def _examples(memory: Memory, present: Bool[np.ndarray, " row"]) -> _Examples:
    """The texts of each label: those that have it, and those for which the votes of other texts find it."""
    labels, rows, how = memory.plan.labels, np.flatnonzero(present), default_voting(memory)
    sets = memory.label_sets.where(present)
    values, true = Values(sets, labels), sets.codes(labels)
    pairs = [true]
    with progress_bar(len(rows), "text", "examples of classifiers") as bar:
        for block, found in left_out_votes(memory, rows, None):
            votes = vote(found, how, values).scores.best(_CANDIDATES)
            pairs.append(rows[block][votes.query] * np.int64(labels) + votes.label)
            bar.update(len(rows[block]))
    codes = np.unique(np.concatenate(pairs))
    text, label = np.divmod(codes, labels)
    order = np.argsort(label, kind="stable")
    offsets = np.cumsum(np.append(0, np.bincount(label, minlength=labels)))
    return _Examples(offsets, text[order], np.isin(codes, true)[order])


def _largest(
    found: Int[np.ndarray, " entry"], weights: Float[np.ndarray, " entry"]
) -> tuple[Int[np.ndarray, " entry"], Float[np.ndarray, " entry"]]:
    """The largest weights and the constant, which is the first term of all."""
    sizes = np.where(found == 0, np.inf, np.abs(weights))
    kept = np.argsort(-sizes, kind="stable")[:_MOST_WEIGHTS]
    return found[kept], weights[kept]


@numba.njit(nogil=True)
def _fit_label(
    texts: Int[np.ndarray, " example"],
    signs: Float[np.ndarray, " example"],
    offsets: Int[np.ndarray, " offset"],
    term: Int[np.ndarray, " entry"],
    values: Float[np.ndarray, " entry"],
    factors: Float[np.ndarray, " term"],
    weights: Float[np.ndarray, " term"],
) -> Any:
    """Fit the weights of one label; return its terms and their weights, times the factors of the terms.

    Args:
        texts: The examples, as rows of `offsets`, with signs: 1 for a text that has the label, -1 for others.
        term, values: The terms of all texts, and their values.
        weights: A zero for each term, which is 0 again at the end.
    """
    duals, squares, order = np.zeros(len(texts)), np.empty(len(texts)), np.arange(len(texts))
    diagonal = 0.5 / _LOSS_WEIGHT
    for nth in range(len(texts)):
        squares[nth] = diagonal
        for entry in range(offsets[texts[nth]], offsets[texts[nth] + 1]):
            squares[nth] += values[entry] ** 2
    np.random.seed(0)
    for _ in range(_EPOCHS if (signs > 0).any() else 0):
        for nth in range(len(order) - 1, 0, -1):
            other = np.random.randint(0, nth + 1)
            order[nth], order[other] = order[other], order[nth]
        for example in order:
            start, stop = offsets[texts[example]], offsets[texts[example] + 1]
            margin = 0.0
            for entry in range(start, stop):
                margin += weights[term[entry]] * values[entry]
            gradient = signs[example] * margin - 1 + diagonal * duals[example]
            dual = max(duals[example] - gradient / squares[example], 0.0)
            step = (dual - duals[example]) * signs[example]
            duals[example] = dual
            if step != 0:
                for entry in range(start, stop):
                    weights[term[entry]] += step * values[entry]
    found, size = np.empty(len(weights), dtype=np.int64), 0
    kept = np.empty(len(weights))
    for nth in range(len(texts)):
        for entry in range(offsets[texts[nth]], offsets[texts[nth] + 1]):
            if weights[term[entry]] != 0:
                found[size], kept[size] = term[entry], weights[term[entry]] * factors[term[entry]]
                size += 1
            weights[term[entry]] = 0.0
    return found[:size].copy(), kept[:size].copy()
