"""A linear classifier of each label over the words and pairs of words of a text, as one feature of the ranker.

The score of a label is the sum of its weights for the terms of the query, each times the weight of the term in the
query, plus a constant. `index_builder/reranker/classifier.py` fits the weights. Nothing live changes them: a live label
has no weights, and its feature is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt32

from recollect.core import kernels
from recollect.core.bundle.arrays import map_array, map_offsets
from recollect.core.bundle.files import CLASSIFIER_FILES
from recollect.core.bundle.values import spans
from recollect.core.system.files import save_array
from recollect.core.words.terms import Words

# A weight of 1.
ONE = 1_024
# The term of the constant, which every text has.
CONSTANT = 0


class TermVectors(NamedTuple):
    """The terms of some texts: text i has the terms `offsets[i]` to `offsets[i + 1]`, with weights of length 1.

    A term is the lower half of its hash. With 300 terms of a query, and 150 candidates of 200 terms, a term gets the
    weight of another one in about one of 500 queries.
    """

    offsets: Int[np.ndarray, " offset"]
    terms: Int[np.ndarray, " term"]
    weights: Float[np.ndarray, " term"]

    @classmethod
    def of(cls, words: Words) -> TermVectors:
        """A word weighs 1 + ln frequency, and a pair of words a quarter of that; the constant weighs 1."""
        offsets, terms, frequencies = kernels.count_terms(*words.terms)
        weights = (1 + np.log(frequencies)) * np.where(terms & np.uint64(1), kernels.PAIR_WEIGHT, 1)
        text = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        weights /= np.sqrt(np.bincount(text, weights**2, minlength=len(offsets) - 1))[text]
        lower = (terms & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ends = offsets[1:]
        return cls(offsets + np.arange(len(offsets)), np.insert(lower, ends, CONSTANT), np.insert(weights, ends, 1.0))


class Classifier(NamedTuple):
    """Label i has the terms and weights `offsets[i]` to `offsets[i + 1]`."""

    offsets: Int[np.ndarray, " offset"]
    terms: UInt32[np.ndarray, " entry"]
    weights: Int[np.ndarray, " entry"]  # int16, in 1,024ths

    @classmethod
    def open_with(cls, open_file: Callable[..., Any], labels: int) -> Classifier:
        """Open the files of a bundle, each with `open_file`, as `Components.open` opens files."""
        offsets, terms, weights = CLASSIFIER_FILES
        found = open_file(map_array, terms, "uint32")
        entries = len(found)
        starts = open_file(map_offsets, offsets, labels, entries)
        return cls(starts, found, open_file(map_array, weights, "int16", entries))

    def write(self, folder: Path) -> None:
        for name, array in zip(CLASSIFIER_FILES, self, strict=True):
            save_array(folder / name, array)

    def take(self, labels: Int[np.ndarray, " label"]) -> Classifier:
        """The classifiers of some labels, in this order; -1 for a label without one."""
        sizes = np.where(labels < 0, 0, np.diff(self.offsets)[labels])
        _, entry = spans(self.offsets[labels], sizes)
        return Classifier(np.cumsum(np.append(0, sizes)), self.terms[entry], self.weights[entry])

    def scores(
        self, words: Words, offsets: Int[np.ndarray, " offset"], labels: Int[np.ndarray, " candidate"]
    ) -> Float[np.ndarray, " candidate"]:
        """The scores of the candidates of each query; NaN for a label without weights."""
        queries = TermVectors.of(words)
        scores: np.ndarray = kernels.score_terms(
            (self.offsets, self.terms, self.weights),
            (queries.offsets, queries.terms, queries.weights),
            offsets,
            labels,
        )
        return scores
