"""Calibrations are fitted to held-out texts whose true probabilities are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from recollect.core.bundle.manifest import Isotonic, Platt
from recollect.core.reranker.calibration import calibrate
from recollect.index_builder.reranker.calibrate import (
    MIN_TEXTS,
    Fit,
    HeldOut,
    fit_isotonic,
    fit_platt,
    fit_probabilities,
    reliable_probabilities,
)
from recollect.index_builder.reranker.orders import TAIL_WEIGHTS
from recollect.index_builder.reranker.vote_probabilities import fit_vote_probabilities, held_out_votes
from recollect.trainer.memory.memory import DEFAULTS, Memory, MemoryPlan
from tests.index_builder.vectors import unit


def logistic(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(1 - 2 * logits))


def steps(logits: np.ndarray) -> np.ndarray:
    return np.select([logits < -1, logits < 1], [0.02, 0.4], 0.45)


def held_out(texts: int, truth: object, seed: int = 0, labels: int = 20) -> HeldOut:
    """Texts with logits from -3 to 3, and true labels with the given probabilities. Some predictions are missing."""
    assert callable(truth)
    rng = np.random.default_rng(seed)
    logit = -np.sort(-rng.uniform(-3, 3, (texts, labels)), axis=1)
    hit = rng.random(logit.shape) < truth(logit)
    logit[::7, -3:], hit[::7, -3:] = -np.inf, False
    return HeldOut(logit, hit, hit.sum(axis=1) + rng.integers(0, 2, texts))


def test_platt_scaling_finds_the_parameters_of_a_logistic_function() -> None:
    fitted = fit_platt(held_out(2_000, logistic))
    assert (fitted.slope, fitted.intercept) == pytest.approx((2, -1), abs=0.1)


def test_isotonic_regression_follows_a_step_function() -> None:
    logits = np.array([-2.5, -1.5, -0.5, 0.5, 2.0])
    assert calibrate(fit_isotonic(held_out(2_000, steps)), logits) == pytest.approx(steps(logits), abs=0.03)


@pytest.mark.parametrize("predictions", [1, 49, 50, 51, 99, 100, 500])
def test_every_point_of_an_isotonic_regression_rests_on_many_predictions(predictions: int) -> None:
    logit = np.linspace(3, -3, predictions)[:, None]
    hit = np.random.default_rng(0).random(logit.shape) < logistic(logit)
    assert (
        1 <= len(fit_isotonic(HeldOut(logit, hit, np.ones(predictions, dtype=int))).logits) <= max(1, predictions // 50)
    )


@pytest.mark.parametrize(("truth", "method"), [(logistic, Platt), (steps, Isotonic)])
def test_calibration_with_the_better_brier_score_is_chosen_and_holds_for_new_texts(truth: object, method: type) -> None:
    fitted = fit_probabilities(held_out(1_000, truth))
    assert fitted is not None
    assert isinstance(fitted.calibration, method)
    assert (fitted.texts, fitted.metrics["ECE@5"] < 0.04) == (1_000, True)
    new = held_out(2_000, truth, seed=1)
    probabilities = new.probabilities(Fit(fitted.calibration, fitted.first_calibration))
    assert probabilities[:, 0].mean() == pytest.approx(fitted.mean_top_probability, abs=0.02)
    for each in fitted.coverage:
        reached = (probabilities >= each.probability) & new.hit
        assert reached.sum() / new.sizes.sum() == pytest.approx(each.share, abs=0.03)


@pytest.mark.parametrize("truth", [logistic, steps])
def test_first_labels_get_their_own_calibration_if_they_are_true_more_often(truth: object) -> None:
    def favour_first(logits: np.ndarray) -> np.ndarray:
        assert callable(truth)
        true = truth(logits)
        true[:, 0] = (1 + 2 * true[:, 0]) / 3
        return true

    fitted = fit_probabilities(held_out(2_000, favour_first))
    assert fitted is not None
    assert fitted.first_calibration is not None
    new = held_out(4_000, favour_first, seed=1)
    found = new.probabilities(Fit(fitted.calibration, fitted.first_calibration))
    assert found[:, 0].mean() == pytest.approx(new.hit[:, 0].mean(), abs=0.02)
    assert found[:, 1:6].mean() == pytest.approx(new.hit[:, 1:6].mean(), abs=0.02)
    assert (np.diff(found, axis=1) <= 0).all()


def test_filtered_labels_of_held_out_texts_are_no_predictions(tmp_path: Path) -> None:
    """The label after the true one is near too, so it takes a part of the probability unless it is filtered."""
    plain = memory(tmp_path / "memory", 600)
    following = np.stack([np.arange(600), (plain.value_indices + 1) % 30], axis=1).astype(np.int64)
    _, held_out = held_out_votes(plain, np.arange(600), tmp_path, 0.0)
    _, filtered = held_out_votes(dataclasses.replace(plain, filtered_pairs=following), np.arange(600), tmp_path, 0.0)
    assert filtered.hit[:, 0].mean() > held_out.hit[:, 0].mean()
    np.testing.assert_array_equal(filtered.logit[filtered.hit], held_out.logit[held_out.hit])  # other scores stay


def memory(folder: Path, instances: int, alpha: float = 0.0) -> Memory:
    """Instances around their label, which are near another label too."""
    rng = np.random.default_rng(3)
    labels, dim = 30, 16
    label_keys = unit(rng.normal(size=(labels, dim)))
    label = rng.integers(labels, size=instances)
    keys = unit(label_keys[label] + label_keys[(label + 1) % labels] / 2 + rng.normal(size=(instances, dim)) / 3)
    plan = MemoryPlan(instances, labels, dim, "float32", {}, "", "")
    defaults = DEFAULTS | {"label_key_alpha": alpha, "top_b": 50}
    values = np.arange(instances + 1), label.astype(np.int32)
    return Memory(folder, plan, defaults, np.concatenate([keys, label_keys]), *values, np.empty((0, 2), np.int64))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_scores_of_left_out_instances_get_probabilities(tmp_path: Path, alpha: float) -> None:
    fitted, choice = fit_vote_probabilities(memory(tmp_path / "memory", 600, alpha), tmp_path, tmp_path, 0.0)
    assert choice.order == "score"
    assert choice.tail_weight in TAIL_WEIGHTS
    assert fitted is not None
    assert fitted.texts == 600
    assert fitted.metrics["ECE@5"] < 0.05
    assert 0.3 < fitted.mean_top_probability < 1  # 1 would mean that the texts vote for themselves


def test_memory_without_labels_or_with_few_texts_gives_no_probabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = memory(tmp_path / "memory", MIN_TEXTS - 1)
    nothing = dataclasses.replace(
        few, value_indptr=np.zeros_like(few.value_indptr), value_indices=few.value_indices[:0]
    )
    for each in (few, nothing):
        assert fit_vote_probabilities(each, tmp_path, tmp_path, 0.0) == (None, ("score", None))
    assert "the training held out 99 texts with labels and a calibration needs 100; train on" in capsys.readouterr().err


def test_inaccurate_calibration_gives_no_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    """Every fifth text has true labels only, so a calibration that is fitted to the other texts expects none."""
    logits = np.tile(np.linspace(2, -2, 5), (200, 1))
    hit = np.repeat(np.arange(200) % 5 == 0, 5).reshape(200, 5)
    assert reliable_probabilities(HeldOut(logits, hit, np.full(200, 5))) is None
    assert "ECE@5 0.4" in (line := capsys.readouterr().err)
    assert "on 200 held-out texts exceeds 0.05; train on more texts" in line
