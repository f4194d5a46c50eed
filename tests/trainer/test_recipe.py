from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from recollect.trainer.errors import TrainingError
from recollect.trainer.recipe import Recipe
from recollect.trainer.train_settings import TrainSettings

ENCODER = {"name": "minilm", "pooling": "mean", "max_length": 128, "label_max_length": 32}


def recipe(instances: int = 1_000, labels: int = 100, device: str = "cpu", ranks: int = 1, **given: Any) -> Recipe:
    settings = TrainSettings(dataset=Path("data"), out=Path("run"), **given)
    return Recipe.of(settings, ENCODER, "e" * 64, "d" * 64, instances, labels, device, ranks)


def peaking(steps: int, learning_rate: float = 1.0) -> Recipe:
    return dataclasses.replace(recipe(), steps=steps, learning_rate=learning_rate)


def test_given_settings_replace_defaults_even_if_they_are_zero() -> None:
    found = recipe(
        method="rae", hard_negatives=0, positives=0, temperature=0.1, learning_rate=0.5, batch_size=10, epochs=2
    )
    assert (found.hard_negatives, found.positives, found.temperature) == (0, 0, 0.1)
    assert (found.learning_rate, found.batch_size, found.epochs, found.steps) == (0.5, 10, 2, 200)
    assert not found.mines
    assert recipe(method="dexml", hard_negatives=5).mines
    found = recipe(method="infonce", hard_negatives="all")
    assert (found.hard_negatives, found.mines) == (None, False)


def test_epoch_has_one_step_for_each_batch_and_by_default_negatives_are_mined_once_an_epoch() -> None:
    found = recipe(instances=1_001, batch_size=100, epochs=4)
    assert found.steps == 4 * 11
    assert found.mine_every == 11
    assert recipe(mine_every=3).mine_every == 3


def test_first_limit_counts_if_epochs_and_steps_are_given_and_steps_alone_decide_the_epochs() -> None:
    assert [recipe(batch_size=100, epochs=4, max_steps=most).steps for most in (0, 7, 1_000)] == [40, 7, 40]
    for steps, epochs in ((10, 1), (11, 2)):
        found = recipe(batch_size=100, max_steps=steps)
        assert (found.steps, found.epochs) == (steps, epochs)


def test_negatives_are_mined_from_the_given_epoch_and_then_in_the_given_rhythm() -> None:
    for given, expected in (({"mine_every": 8}, [20, 28, 36, 44, 52]), ({"mine_every_epochs": 3}, [20, 50])):
        found = recipe(instances=100, batch_size=10, epochs=6, mine_from=2, **given)
        assert [step for step in range(found.steps) if found.mines_at(step)] == expected


def test_tf32_is_refused_on_a_cpu() -> None:
    assert recipe(precision="tf32", device="cuda").precision == "tf32"
    with pytest.raises(TrainingError, match="--precision tf32: expected --device cuda"):
        recipe(precision="tf32", device="cpu")


@pytest.mark.parametrize(
    ("precision", "device", "expected"), [("auto", "cpu", "fp32"), ("auto", "cuda", "bf16"), ("fp32", "cuda", "fp32")]
)
def test_precision_auto_means_bf16_only_on_a_gpu(precision: str, device: str, expected: str) -> None:
    assert recipe(precision=precision, device=device).precision == expected


@pytest.mark.parametrize(
    ("labels", "device", "expected"),
    [(100, "cpu", "exact"), (10_000_000, "cpu", "approximate"), (10_000_000, "cuda", "exact")],
)
def test_negatives_of_many_labels_are_mined_by_inverted_lists_on_a_cpu(labels: int, device: str, expected: str) -> None:
    assert recipe(labels=labels, device=device).mine_search == expected


def test_learning_rate_rises_and_falls_linearly() -> None:
    found = peaking(100)
    assert [found.rate(step) for step in range(10)] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert [found.rate(step) for step in range(10, 101)] == pytest.approx(
        [(100 - step) / 90 for step in range(10, 101)]
    )


@pytest.mark.parametrize(("warmup", "steps"), [(0.1, 10), (0.25, 25), (0, 1), (1, 1), (30, 30), (200, 200)])
def test_warm_up_is_a_share_of_the_steps_or_a_number_of_steps(warmup: float, steps: int) -> None:
    found = dataclasses.replace(peaking(100), warmup=warmup)
    assert [found.rate(step) for step in range(min(steps, 100))] == pytest.approx(
        [(step + 1) / steps for step in range(min(steps, 100))]
    )


@pytest.mark.parametrize("warmup", [100, 0.1])
def test_warm_up_under_a_time_limit_counts_the_steps_that_the_machine_makes(warmup: float) -> None:
    found = dataclasses.replace(peaking(10_000), warmup=warmup, max_seconds=60)  # 1,000 steps fit into 60 seconds
    rates = [found.rate(step, step * 0.06) for step in range(1_000)]
    expected = [min((step + 1) / 100, (1_000 - step) / 900) for step in range(1_000)]
    assert rates[1:] == pytest.approx(expected[1:], rel=0.02, abs=0.002)
    assert max(rates) == pytest.approx(1)


def test_warm_up_in_steps_is_not_shorter_if_the_first_step_takes_long() -> None:
    found = dataclasses.replace(peaking(10_000), warmup=100, max_seconds=60)
    rates = [found.rate(step, 5 + step * 0.06 if step else 0) for step in range(917)]
    assert rates[:100] == pytest.approx([(step + 1) / 100 for step in range(100)])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[-1] < 0.002


def test_differences_of_recipes_name_changed_and_missing_fields() -> None:
    found = recipe(method="dexml")
    saved = json.loads(json.dumps(found.as_json()))
    saved["seed"] += 1
    saved["encoder"]["pooling"] = "cls"
    saved["hard_negatives"] = 2
    del saved["precision"]
    assert sorted(found.differences(saved)) == ["encoder", "hard_negatives", "precision", "seed"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"method": "rae"}, (0, 0, 1)),
        ({"method": "rae", "clusters": 20, "cluster_from": 3, "cluster_every": 4}, (20, 3, 4)),
        ({"method": "prime"}, (125, 0, 2)),
        ({"method": "prime", "epochs": 100, "cluster_from": 10}, (125, 10, 5)),
        ({"method": "supcon", "batch_size": 100}, (10, 0, 2)),
    ],
    ids=str,
)
def test_number_of_clusters_is_the_given_number_or_the_default_of_the_method(
    given: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    found = recipe(**given)
    assert (found.clusters, found.cluster_from, found.cluster_every) == expected


def bank_of(found: Recipe) -> Any:
    return found.as_json()["options"]["bank"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"clusters": 1_001}, "--clusters 1001: expected at most 1,000, the instances to train on; choose fewer"),
        ({"clusters": 2}, "--clusters 2: expected at least 4, the batches of an epoch"),
        ({"cluster_from": 3, "epochs": 3}, "--cluster-from 3: expected an epoch before the end, found 3 in all"),
        ({"cluster_from": 2, "max_steps": 8}, "--cluster-from 2: expected an epoch before the end, found 2 in all"),
        (
            {"cluster_double_at": [2, 4, 5], "cluster_every": 2, "epochs": 6},
            "--cluster-double-at 5: expected an epoch after the first clustering, 0, and until the last one, 4",
        ),
        (
            {"cluster_double_at": [1, 2], "cluster_from": 1, "epochs": 6},
            "--cluster-double-at 1: expected an epoch after the first clustering, 1, and until the last one, 5",
        ),
        (
            {"hard_negatives": 5, "mine_from": 3, "epochs": 3},
            "--mine-from 3: expected an epoch before the end, found 3 in all; choose an earlier one",
        ),
        ({"bank": 101}, "--bank 101: expected at most 100, the number of labels; choose a smaller one"),
    ],
    ids=str,
)
def test_clusters_banks_and_epochs_that_do_not_suit_the_training_are_refused(
    given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TrainingError, match=re.escape(complaint)):
        recipe(method="prime", **given)
    assert bank_of(recipe(method="prime", clusters=1_000, bank=100)) == 100


def test_late_epochs_of_a_preset_are_not_refused_with_fewer_epochs() -> None:
    found = recipe(preset="prime/lf-amazontitles-131k", encoder="minilm", batch_size=100, bank=50, epochs=3)
    assert found.cluster_from >= found.epochs == 3
    assert max(found.cluster_double_at) > 3


@pytest.mark.parametrize(
    ("clusters", "settings", "fewest", "expected"),
    [
        (40, {"cluster_from": 2, "cluster_every": 3}, 15, [0, 0, 40, 0, 0, 20, 0, 0, 15, 0, 0, 15]),
        (
            40,
            {"cluster_from": 2, "cluster_every": 3, "cluster_double_at": (1, 2, 4, 10, 11)},
            4,
            [0, 0, 40, 0, 0, 20, 0, 0, 20, 0, 0, 5, 0, 0, 5],
        ),
        (7, {}, 2, [7, 3, 2, 2]),
        (1, {}, 2, [2, 2, 2, 2]),
        (0, {}, 2, [0, 0, 0]),
    ],
    ids=["every third epoch", "at the given epochs only", "never below the batches", "one cluster", "none"],
)
def test_clusterings_halve_the_number_of_clusters(
    clusters: int, settings: dict[str, Any], fewest: int, expected: list[int]
) -> None:
    planned = dataclasses.replace(recipe(), clusters=clusters, **settings)
    assert [planned.clusters_at(epoch, fewest) for epoch in range(len(expected))] == expected
