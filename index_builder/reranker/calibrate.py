"""Calibration: fit probabilities to the logits of held-out texts, and measure them.

Platt scaling and isotonic regression, each with and without a calibration of its own for the first labels, are compared
by their Brier score on texts that took no part in the fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import optimize

from recollect.core.bundle.manifest import Coverage, Isotonic, Platt, Probabilities
from recollect.core.reranker.calibration import calibrate_answers
from recollect.core.system.console import print_status
from recollect.index_builder.evaluation.probabilities import brier, reliability
from recollect.trainer.memory.left_out import MORE_HELD_OUT

# Fewer texts give no reliable calibration.
MIN_TEXTS = 100
_FOLDS = 5
# Least number of predictions in a pool of the isotonic regression.
_MIN_POOL = 50
# Shares of the true labels for which the least probability is stated.
_SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)
# Largest calibration error with which a bundle gives probabilities.
_MAX_ERROR = 0.05


class Fit(NamedTuple):
    """The calibration of all labels, and that of the first labels if it is another one."""

    calibration: Platt | Isotonic
    first_calibration: Platt | Isotonic | None = None


@dataclass(frozen=True)
class HeldOut:
    """Predictions for held-out texts, which took no part in the fit of the logits."""

    logit: Float[np.ndarray, "text label"]  # in falling order; -inf marks a missing prediction
    hit: Bool[np.ndarray, "text label"]  # marks the true labels among the predictions
    sizes: Int[np.ndarray, " text"]  # number of true labels

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, texts: Bool[np.ndarray, " text"]) -> HeldOut:
        return HeldOut(self.logit[texts], self.hit[texts], self.sizes[texts])

    def ranks(self, ranks: slice) -> HeldOut:
        """The predictions of some ranks."""
        return HeldOut(self.logit[:, ranks], self.hit[:, ranks], self.sizes)

    def probabilities(self, fit: Fit) -> Float[np.ndarray, "text label"]:
        predicted = np.isfinite(self.logit)
        result = np.zeros(self.logit.shape)
        offsets = np.cumsum([0, *predicted.sum(axis=1)])
        result[predicted] = calibrate_answers(*fit, self.logit[predicted], offsets)
        return result


def fit_probabilities(held_out: HeldOut) -> Probabilities | None:
    """Fit all forms of calibration, choose the best one, and measure it; None for too few texts, or without hits."""
    if len(held_out) < MIN_TEXTS or not held_out.hit.any():
        return None
    crossed = [_cross_fitted(held_out, fit) for fit in _FITS]
    scores = [float(brier(probabilities, held_out.hit, held_out.sizes).mean()) for probabilities in crossed]
    best = int(np.argmin(scores))
    chosen = _FITS[best](held_out)
    final = held_out.probabilities(chosen)
    errors = {f"ECE@{k}": reliability(crossed[best], held_out.hit, k).expected_error for k in (1, 5)}
    return Probabilities(
        **chosen._asdict(),
        texts=len(held_out),
        metrics=errors | {"Brier": scores[best]},
        mean_top_probability=float(final[:, 0].mean()),
        coverage=list(_coverage(final[held_out.hit], int(held_out.sizes.sum()))),
    )


def fit_platt(held_out: HeldOut) -> Platt:
    """Fit a logistic function by maximum likelihood, with Platt's smoothed targets (Platt, 1999)."""
    predicted = np.isfinite(held_out.logit)
    logit, true = held_out.logit[predicted], held_out.hit[predicted]
    positives, negatives = int(true.sum()), int((~true).sum())
    target = np.where(true, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        z = parameters[0] * logit + parameters[1]
        error = 0.5 + 0.5 * np.tanh(z / 2) - target
        return float((np.logaddexp(0, z) - target * z).mean()), np.array([(error * logit).mean(), error.mean()])

    slope, intercept = optimize.minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(1e-6, None), (None, None)]
    ).x
    return Platt(slope=float(slope), intercept=float(intercept))


def fit_isotonic(held_out: HeldOut) -> Isotonic:
    """Fit isotonic regression by pooling adjacent violators; a pool becomes one point, at its mean logit.

    Interpolation between the points lets the probability rise inside a pool (Oron and Flournoy, 2017). One half of a
    true and of a false prediction is added to each pool, so that no probability is exactly 0 or 1.
    """
    predicted = np.isfinite(held_out.logit)
    logit, place, count = np.unique(held_out.logit[predicted], return_inverse=True, return_counts=True)
    true = np.bincount(place, held_out.hit[predicted])
    starts = _merge_small(optimize.isotonic_regression(true / count, weights=count).blocks[:-1], count)
    predictions, hits = np.add.reduceat(count, starts), np.add.reduceat(true, starts)
    centres = np.add.reduceat(logit * count, starts) / predictions
    rates = np.maximum.accumulate((hits + 0.5) / (predictions + 1))
    return Isotonic(logits=tuple(centres.tolist()), probabilities=tuple(rates.tolist()))


def _with_first(fit: Callable[[HeldOut], Platt | Isotonic], held_out: HeldOut) -> Fit:
    """Fit the first labels apart from the other labels, if both have predictions and true labels."""
    first, others = held_out.ranks(slice(1)), held_out.ranks(slice(1, None))
    if not (first.hit.any() and others.hit.any()):
        return Fit(fit(held_out))
    return Fit(fit(others), fit(first))


# The fits that are compared; the first one wins if several are equally good.
_FITS: tuple[Callable[[HeldOut], Fit], ...] = (
    lambda held_out: Fit(fit_platt(held_out)),
    lambda held_out: Fit(fit_isotonic(held_out)),
    functools.partial(_with_first, fit_platt),
    functools.partial(_with_first, fit_isotonic),
)


def _merge_small(starts: Int[np.ndarray, " pool"], count: Int[np.ndarray, " logit"]) -> Int[np.ndarray, " pool"]:
    """Merge pools of few predictions with their neighbours, because their shares of true labels are mostly chance."""
    merged: list[int] = []
    predictions = 0
    for start, size in zip(starts[::-1].tolist(), np.add.reduceat(count, starts)[::-1].tolist(), strict=True):
        predictions += size
        if predictions >= _MIN_POOL:
            merged.append(start)
            predictions = 0
    if predictions:  # the lowest pools are too small together
        merged[-1:] = [0]
    return np.array(merged[::-1])


def _cross_fitted(held_out: HeldOut, fit: Callable[[HeldOut], Fit]) -> Float[np.ndarray, "text label"]:
    """The probabilities of each text from a calibration that was fitted on the other texts."""
    fold = np.arange(len(held_out)) % _FOLDS
    result = np.zeros(held_out.logit.shape)
    for number in range(_FOLDS):
        left_out = fold == number
        result[left_out] = held_out[left_out].probabilities(fit(held_out[~left_out]))
    return result


def _coverage(probabilities: Float[np.ndarray, " label"], true_labels: int) -> list[Coverage]:
    """For each share, the highest probability that so many of the true labels, predicted or not, reach."""
    falling = np.sort(probabilities)[::-1]
    needed = {share: int(np.ceil(share * true_labels)) for share in _SHARES}
    return [
        Coverage(share=share, probability=float(falling[count - 1]))
        for share, count in needed.items()
        if 0 < count <= len(falling)
    ]


def reliable_probabilities(held_out: HeldOut) -> Probabilities | None:
    """Fit and measure a calibration; None, with the reason as a status message, if it is impossible or inaccurate."""
    fitted = fit_probabilities(held_out)
    if fitted is None:
        print_status(f"probabilities: none, because no true label of {len(held_out):,} held-out texts is found")
        return None
    summary = f"ECE@5 {fitted.metrics['ECE@5']:.3f} on {fitted.texts:,} held-out texts"
    if not is_reliable(fitted):
        print_status(f"probabilities: none, because {summary} exceeds {_MAX_ERROR}; {MORE_HELD_OUT}")
        return None
    print_status(f"probabilities: {fitted.calibration.method}, {summary}")
    return fitted


def is_reliable(fitted: Probabilities) -> bool:
    """Whether a calibration is accurate enough for a bundle."""
    return fitted.metrics["ECE@5"] <= _MAX_ERROR
