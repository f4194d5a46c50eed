"""Calibration: logits of labels become probabilities.

Among all labels with the probability p, the share p is true. `index_builder/ranking/calibrate.py` fits the calibration
on held-out texts. Both forms rise with the logit, so labels in order of their logits are in order of their
probabilities. Without a ranker, the log-odds of the score take the place of the logit.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from service.bundle.manifest import Isotonic, Platt

# Scores of exactly 0 and 1 have no finite log-odds.
_LEAST = 1e-9


def calibrate(calibration: Platt | Isotonic, logits: Float[np.ndarray, " label"]) -> Float[np.ndarray, " label"]:
    """Convert logits to probabilities.

    Platt scaling (Platt, 1999) is a logistic function of the logit. Isotonic regression is a table, interpolated
    linearly and constant outside its ends.
    """
    if isinstance(calibration, Platt):
        # tanh instead of exp, because exp overflows for large negative logits.
        scaled: np.ndarray = 0.5 + 0.5 * np.tanh((calibration.slope * logits + calibration.intercept) / 2)
        return scaled
    table: np.ndarray = np.interp(logits, calibration.logits, calibration.probabilities)
    return table


def log_odds(scores: Float[np.ndarray, " label"]) -> Float[np.ndarray, " label"]:
    """The log-odds of scores in [0, 1]."""
    inside = np.clip(scores, _LEAST, 1 - _LEAST)
    odds: np.ndarray = np.log(inside) - np.log1p(-inside)
    return odds
