"""Probabilities of a bundle without a ranker: a calibration of the scores, fitted on held-out instances of the memory.

Each held-out instance is left out of the memory, and answered by exact search with the default options.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recollect.index_builder.console import print_status
from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.index_builder.left_out_votes import left_out_votes, remove_filtered
from recollect.index_builder.ranking.calibrate import HeldOut, fit_probabilities
from recollect.service.bundle.manifest import Probabilities
from recollect.service.bundle.values import SparseValues
from recollect.service.lexical.index import LexicalIndex
from recollect.service.predictor.scoring import rank
from recollect.service.predictor.words import mix
from recollect.service.ranking.calibration import log_odds
from recollect.trainer.memory.left_out import choose_queries
from recollect.trainer.memory.memory import Memory
from recollect.trainer.metrics import hits

# Maximum number of texts; more texts hardly change the calibration.
_MOST_TEXTS = 2_000
# Largest calibration error with which a bundle gives probabilities.
_MOST_ERROR = 0.05


def fit_vote_probabilities(memory: Memory, run: Path, folder: Path, word_weight: float) -> Probabilities | None:
    """Fit and measure a calibration of the scores; None, with the reason as a status message, if that is not possible.

    Args:
        memory: The memory of the bundle.
        run: The run folder, which records the held-out instances.
        folder: The bundle folder, which has the lexical index if `word_weight` is above 0.
        word_weight: Default share of the votes by words in a score.
    """
    if not len(memory.value_indices):
        print_status("probabilities: none, because no instance has a label")
        return None
    rows, trained_on = choose_queries(memory, run, _MOST_TEXTS, seed=0)
    if trained_on:
        print_status("probabilities: none, because training held out no texts (--validation-fraction)")
        return None
    fitted = fit_probabilities(_held_out_votes(memory, rows, folder, word_weight))
    if fitted is None:
        print_status(f"probabilities: none, because {len(rows):,} held-out texts are too few")
        return None
    error = fitted.metrics["ECE@5"]
    summary = f"ECE@5 {error:.3f} on {fitted.texts:,} held-out texts"
    if error > _MOST_ERROR:
        print_status(f"probabilities: none, because {summary} exceeds {_MOST_ERROR}")
        return None
    print_status(f"probabilities: {fitted.calibration.method}, {summary}")
    return fitted


def _held_out_votes(memory: Memory, rows: np.ndarray, folder: Path, word_weight: float) -> HeldOut:
    values = SparseValues(memory.value_indptr, memory.value_indices, memory.plan.labels)
    index = LexicalIndex.open(folder, memory.plan.instances, memory.plan.labels) if word_weight else None
    truth, filtered = (sets.to_csr(memory.plan.labels)[rows] for sets in (memory.label_sets, memory.filtered_labels))
    label, logit = [], []
    for block, votes, by_words in left_out_votes(memory, rows, index):
        ranking = rank(votes if by_words is None else mix(votes, by_words, word_weight), values)
        ranking = remove_filtered(ranking, filtered[block])
        best = best_rows(ranking.query, len(rows[block]))
        label.append(pick(ranking.label, best, -1))
        logit.append(pick(log_odds(ranking.score), best, -np.inf))
    return HeldOut(np.concatenate(logit), hits(np.concatenate(label), truth), np.diff(truth.indptr))
