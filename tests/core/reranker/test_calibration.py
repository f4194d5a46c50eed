"""Calibrations: logits become probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from recollect.core.bundle.manifest import Isotonic, Platt
from recollect.core.reranker.calibration import calibrate, calibrate_answers, log_odds


def test_platt_scaling_is_a_logistic_function_and_does_not_overflow() -> None:
    logits = np.array([-1e6, -2.0, 0.0, 3.0, 1e6])
    with np.errstate(all="raise"):
        found = calibrate(Platt(slope=2.0, intercept=-1.0), logits)
    assert found == pytest.approx([0, 1 / (1 + np.exp(5)), 1 / (1 + np.exp(1)), 1 / (1 + np.exp(-5)), 1])


def test_isotonic_table_is_interpolated_and_constant_outside_its_ends() -> None:
    table = Isotonic(logits=(-1.0, 1.0, 3.0), probabilities=(0.1, 0.3, 0.9))
    assert calibrate(table, np.array([-9.0, -1.0, 0.0, 2.0, 9.0])) == pytest.approx([0.1, 0.1, 0.2, 0.6, 0.9])


def test_first_label_of_each_query_has_its_own_calibration_and_is_never_less_probable_than_the_second() -> None:
    usual, first = Platt(slope=1.0, intercept=0.0), Platt(slope=1.0, intercept=1.0)
    lower = Platt(slope=1.0, intercept=-5.0)
    logits, offsets = np.array([2.0, 1.0, 3.0, 0.5, 0.0, -1.0]), np.array([0, 2, 3, 3, 3, 6])
    expected = calibrate(usual, logits)
    assert calibrate_answers(usual, None, logits, offsets).tolist() == expected.tolist()
    starts = np.array([0, 2, 3])
    raised = expected.copy()
    raised[starts] = calibrate(first, logits[starts])
    assert calibrate_answers(usual, first, logits, offsets).tolist() == raised.tolist()
    limited = expected.copy()
    limited[starts] = [expected[1], calibrate(lower, logits[2:3])[0], expected[4]]
    assert calibrate_answers(usual, lower, logits, offsets).tolist() == limited.tolist()
    assert calibrate_answers(usual, first, logits[:0], offsets[:1]).tolist() == []


def test_log_odds_of_scores_are_finite_and_rise() -> None:
    found = log_odds(np.array([0.0, 0.25, 0.5, 1.0]))
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()
    assert found[1:3] == pytest.approx([np.log(1 / 3), 0])


@pytest.mark.parametrize(
    ("logits", "probabilities"),
    [((0.0, 1.0), (0.5,)), ((1.0, 0.0), (0.1, 0.2)), ((0.0, 0.0), (0.1, 0.2)), ((0.0, 1.0), (0.2, 0.1)), ((), ())]
    + [((0.0, 1.0), (0.5, 1.5)), ((0.0, float("nan")), (0.1, 0.2))],
)
def test_table_that_does_not_rise_is_refused(logits: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        Isotonic(logits=logits, probabilities=probabilities)


def test_platt_scaling_that_does_not_rise_is_refused() -> None:
    with pytest.raises(ValidationError):
        Platt(slope=0.0, intercept=0.0)
