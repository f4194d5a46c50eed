"""Calibration: logits of labels become probabilities.

Among all labels with the probability p, the share p is true. `index_builder/reranker/calibrate.py` fits the calibration
on held-out texts. Both forms rise with the logit, so labels in order of their logits are in order of their
probabilities. Without a ranker, the log-odds of the score take the place of the logit.

The first label of an answer is true more often than another label with the same logit, because all other labels of its
query have less evidence. So it can have a calibration of its own.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from recollect.core.bundle.manifest import Isotonic, Platt

# Scores of exactly 0 and 1 have no finite log-odds.
_LEAST = 1e-9


def calibrate_answers(
    calibration: Platt | Isotonic,
    first_calibration: Platt | Isotonic | None,
    logits: Float[np.ndarray, " row"],
    offsets: Int[np.ndarray, " offset"],
) -> Float[np.ndarray, " row"]:
    """Convert the logits of whole answers to probabilities, which are in falling order for each query, too.

    Args:
        first_calibration: The calibration of the first label of each query; None: `calibration`.
        logits: The logits; those of a query are in falling order.
        offsets: Query i has the logits `offsets[i]` to `offsets[i + 1]`.
    """
    probabilities = calibrate(calibration, logits)
    if first_calibration is not None:
        starts, counts = offsets[:-1], np.diff(offsets)
        first, second = starts[counts > 0], starts[counts > 1] + 1
        probabilities[first] = calibrate(first_calibration, logits[first])
        probabilities[second - 1] = np.maximum(probabilities[second - 1], probabilities[second])
    return probabilities


def calibrate(calibration: Platt | Isotonic, logits: Float[np.ndarray, " label"]) -> Float[np.ndarray, " label"]:
    """Convert logits to probabilities.

    Platt scaling (Platt, 1999) is a logistic function of the logit. Isotonic regression is a table, interpolated
    linearly and constant outside its ends.
    """
    if isinstance(calibration, Platt):
        # tanh instead of exp, because exp overflows for large negative logits.
        scaled: np.ndarray = 0.5 + 0.5 * np.tanh((calibration.slope * logits + calibration.intercept) / 2)
        return scaled
    table: np.ndarray = np.interp(logits, *calibration.columns)
    return table


def log_odds(scores: Float[np.ndarray, " label"]) -> Float[np.ndarray, " label"]:
    """The log-odds of scores in [0, 1]."""
    inside = np.clip(scores, _LEAST, 1 - _LEAST)
    odds: np.ndarray = np.log(inside) - np.log1p(-inside)
    return odds
