"""Probabilities of a bundle without a ranker: a calibration of the scores, fitted on held-out instances of the memory.

Each held-out instance is left out of the memory, and answered by exact search with the default options.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from index_builder.console import print_status
from index_builder.evaluate import best_rows, pick
from index_builder.ranking.calibrate import HeldOut, fit_probabilities
from service.bundle.manifest import Probabilities
from service.bundle.values import Values
from service.predictor.scoring import cast_votes, rank
from service.predictor.searcher import Neighbours, search_parts
from service.ranking.calibration import log_odds
from trainer.left_out import choose_queries, instance_neighbours, label_neighbours
from trainer.memory import Memory
from trainer.metrics import hits

# Maximum number of texts; more texts hardly change the calibration.
_MOST_TEXTS = 2_000
_BLOCK_TEXTS = 256
# Largest calibration error with which a bundle gives probabilities.
_MOST_ERROR = 0.05


def fit_vote_probabilities(memory: Memory, run: Path) -> Probabilities | None:
    """Fit and measure a calibration of the scores; None, with the reason as a status message, if that is not possible.

    Args:
        memory: The memory of the run.
        run: The run folder, which records the held-out instances.
    """
    if not len(memory.value_indices):
        print_status("probabilities: none, because no instance has a label")
        return None
    rows, trained_on = choose_queries(memory, run, _MOST_TEXTS, seed=0)
    if trained_on:
        print_status("probabilities: none, because training held out no texts (--validation-fraction)")
        return None
    fitted = fit_probabilities(_held_out_votes(memory, rows))
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


def _held_out_votes(memory: Memory, rows: np.ndarray) -> HeldOut:
    defaults, values = memory.defaults, Values(memory.value_indptr, memory.value_indices, memory.plan.labels)
    lambda_, top_b = defaults["lambda"], int(defaults["top_b"])
    instances = instance_neighbours(memory, rows, top_b)
    labels = label_neighbours(memory, rows, defaults["label_key_alpha"], top_b)
    found = search_parts(
        lambda *_: Neighbours(instances.similarities, instances.keys),
        lambda *_: Neighbours(labels.similarities, labels.keys),
        memory.plan.instances,
        np.asarray(memory.instance_keys[rows]),
        top_b,
        lambda_,
    )
    label, logit = [], []
    for start in range(0, len(rows), _BLOCK_TEXTS):
        block = slice(start, start + _BLOCK_TEXTS)
        part = Neighbours(found.similarities[block], found.keys[block])
        ranking = rank(cast_votes(part, defaults["temperature"], lambda_, values), values)
        best = best_rows(ranking.query, len(part.keys))
        label.append(pick(ranking.label, best, -1))
        logit.append(pick(log_odds(ranking.score), best, -np.inf))
    truth = memory.label_sets.to_csr(memory.plan.labels)[rows]
    return HeldOut(np.concatenate(logit), hits(np.concatenate(label), truth), np.diff(truth.indptr))
