"""Probabilities of a bundle without a ranker: a calibration of its scores, and the weight of its order macro.

Each held-out instance is left out of the memory, and answered by exact search with the default options.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.manifest import Probabilities
from recollect.core.reranker.calibration import log_odds
from recollect.core.scoring import vote
from recollect.core.system.console import print_status
from recollect.core.words.index import LexicalIndex
from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.index_builder.left_out_votes import default_voting, left_out_votes, without_filtered
from recollect.index_builder.reranker.calibrate import MIN_TEXTS, HeldOut, reliable_probabilities
from recollect.index_builder.reranker.orders import MostProbable, OrderChoice, fit_tail_weight
from recollect.trainer.memory.left_out import MORE_HELD_OUT, choose_queries
from recollect.trainer.memory.memory import Memory
from recollect.trainer.metrics import hits

# Maximum number of texts; more texts hardly change the calibration.
_MAX_TEXTS = 2_000
# The training instances of a label are counted without the texts of a fold. A count without the query alone would
# reveal its labels.
_FOLDS = 3


def fit_vote_probabilities(
    memory: Memory, run: Path, folder: Path, word_weight: float
) -> tuple[Probabilities | None, OrderChoice]:
    """Fit and measure a calibration of the scores; None, with the reason as a status message, if that is not possible.

    The run records the held-out instances. The bundle folder has the lexical index if `word_weight` is above 0. Return
    the default order, too: it is always the score.
    """
    rows = choose_queries(memory, run, _MAX_TEXTS, seed=0)
    if len(rows) < MIN_TEXTS:
        print_status(
            f"probabilities: none, because the training held out {len(rows):,} texts with labels and a calibration "
            f"needs {MIN_TEXTS}; {MORE_HELD_OUT}"
        )
        return None, OrderChoice("score", None)
    labels, held_out = held_out_votes(memory, rows, folder, word_weight)
    fitted = reliable_probabilities(held_out)
    if fitted is None:
        return None, OrderChoice("score", None)
    most_probable = MostProbable.of(labels, _counts(memory, rows, labels), held_out, fitted)
    return fitted, OrderChoice("score", fit_tail_weight(most_probable, memory.relevance[rows]))


def held_out_votes(
    memory: Memory, rows: Int[np.ndarray, " query"], folder: Path, word_weight: float
) -> tuple[Int[np.ndarray, "query 100"], HeldOut]:
    """The best labels of held-out instances by votes, best first, and their log-odds."""
    index = LexicalIndex.open(folder, memory.plan.instances, memory.plan.labels) if word_weight else None
    truth, filtered = (sets.to_csr(memory.plan.labels)[rows] for sets in (memory.label_sets, memory.filtered_labels))
    label, logit = [], []
    for block, found in left_out_votes(memory, rows, index):
        votes = vote(found, default_voting(memory, word_weight), memory.values).scores
        ranking = votes.where(without_filtered(filtered[block], votes)).best()
        best = best_rows(ranking.query, len(rows[block]))
        label.append(pick(ranking.label, best, -1))
        logit.append(pick(log_odds(ranking.score), best, -np.inf))
    labels = np.concatenate(label)
    return labels, HeldOut(np.concatenate(logit), hits(labels, truth), np.diff(truth.indptr))


def _counts(
    memory: Memory, rows: Int[np.ndarray, " query"], labels: Int[np.ndarray, "query 100"]
) -> Int[np.ndarray, "query 100"]:
    """Number of training instances of each label, without the fold of the query; 0 for the padding."""
    counts = np.zeros(labels.shape, dtype=np.int64)
    for fold in range(_FOLDS):
        members = slice(fold, None, _FOLDS)
        absent = np.bincount(memory.relevance[rows[members]].indices, minlength=memory.plan.labels)
        counts[members] = pick(memory.label_counts - absent, labels[members], 0)
    return counts
