from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import TrainingError
from trainer.methods import METHODS
from trainer.recipe import Recipe
from trainer.settings import TrainSettings

ENCODER = {"name": "minilm", "pooling": "mean", "max_length": 128, "label_max_length": 32}


def recipe(instances: int = 1_000, labels: int = 100, device: str = "cpu", ranks: int = 1, **asked: Any) -> Recipe:
    settings = TrainSettings(dataset=Path("data"), out=Path("run"), **asked)
    return Recipe.of(settings, ENCODER, "e" * 64, "d" * 64, instances, labels, device, ranks)


def peaking(steps: int, learning_rate: float = 1.0) -> Recipe:
    return dataclasses.replace(recipe(), steps=steps, learning_rate=learning_rate)


@pytest.mark.parametrize(
    ("train", "epochs", "batch_size", "learning_rate"), [("adapter", 15, 256, 1e-3), ("full", 3, 128, 1e-4)]
)
def test_what_is_trained_decides_epochs_batch_size_and_learning_rate(
    train: str, epochs: int, batch_size: int, learning_rate: float
) -> None:
    made = recipe(train=train)
    assert (made.train, made.epochs, made.batch_size, made.learning_rate) == (train, epochs, batch_size, learning_rate)


@pytest.mark.parametrize(
    ("method", "temperature", "hard_negatives", "positives", "mines"),
    [
        ("rae", 0.04, 2, 1, True),
        ("dexml", 0.05, None, 0, False),
        ("softtopk", 0.05, None, 0, False),
        ("infonce", 0.05, 0, 1, False),
    ],
)
def test_the_method_decides_temperature_negatives_and_positives(
    method: str, temperature: float, hard_negatives: int | None, positives: int, mines: bool
) -> None:
    made = recipe(method=method)
    assert (made.temperature, made.hard_negatives, made.positives) == (temperature, hard_negatives, positives)
    assert made.mines == mines


def test_how_many_processes_share_a_step_and_where_is_part_of_it() -> None:
    made = recipe(device="cuda", ranks=4, micro_batch=16)
    assert (made.device, made.ranks, made.micro_batch) == ("cuda", 4, 16)


def test_what_is_asked_for_stands_even_where_it_is_zero() -> None:
    made = recipe(
        method="rae", hard_negatives=0, positives=0, temperature=0.1, learning_rate=0.5, batch_size=10, epochs=2
    )
    assert (made.hard_negatives, made.positives, made.temperature) == (0, 0, 0.1)
    assert (made.learning_rate, made.batch_size, made.epochs, made.steps) == (0.5, 10, 2, 200)
    assert not made.mines
    assert recipe(method="dexml", hard_negatives=5).mines


def test_an_epoch_has_a_step_for_each_batch_begun_and_is_the_time_between_minings() -> None:
    made = recipe(instances=1_001, batch_size=100, epochs=4)
    assert made.steps == 4 * 11
    assert made.mine_every == 11
    assert recipe(mine_every=3).mine_every == 3


@pytest.mark.parametrize(("max_steps", "steps"), [(0, 40), (7, 7), (40, 40), (1_000, 40)])
def test_steps_are_cut_short_but_never_made_more(max_steps: int, steps: int) -> None:
    assert recipe(batch_size=100, epochs=4, max_steps=max_steps).steps == steps


@pytest.mark.parametrize("train", ["adapter", "full"])
def test_a_small_dataset_is_one_batch(train: str) -> None:
    assert recipe(instances=7, train=train).batch_size == 7
    assert recipe(instances=7, batch_size=7).steps == 15


def test_a_batch_larger_than_the_dataset_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"--batch-size 1001: expected at most 1,000.*choose a smaller one"):
        recipe(instances=1_000, batch_size=1_001)


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [("auto", "cpu", "fp32"), ("auto", "cuda", "bf16"), ("fp32", "cuda", "fp32"), ("bf16", "cpu", "bf16")],
)
def test_auto_precision_is_half_on_a_gpu_only(precision: str, device: str, expected: str) -> None:
    assert recipe(precision=precision, device=device).precision == expected


@pytest.mark.parametrize(
    ("asked", "labels", "device", "expected"),
    [
        ("auto", 100, "cpu", "exact"),
        ("auto", 10_000_000, "cpu", "approximate"),
        ("auto", 10_000_000, "cuda", "exact"),
        ("exact", 10_000_000, "cpu", "exact"),
        ("approximate", 100, "cuda", "approximate"),
    ],
)
def test_negatives_of_many_labels_are_mined_by_inverted_lists_on_a_cpu(
    asked: str, labels: int, device: str, expected: str
) -> None:
    assert recipe(labels=labels, device=device, mine_search=asked).mine_search == expected


@pytest.mark.parametrize("steps", [1, 2, 3, 9, 10, 11, 19, 100, 1_234])
def test_the_rate_rises_to_its_peak_within_a_tenth_and_falls_to_nothing_at_the_end(steps: int) -> None:
    made = peaking(steps, learning_rate=3e-4)
    rates = [made.rate(step) for step in range(steps + 1)]
    assert rates[-1] == 0
    assert min(rates[:-1]) > 0
    assert max(rates) == 3e-4
    peak = rates.index(max(rates))
    assert peak <= -(-steps // 10)
    assert all(a < b for a, b in zip(rates[:peak], rates[1 : peak + 1], strict=True))
    assert all(a >= b for a, b in zip(rates[peak:-1], rates[peak + 1 :], strict=True))


def test_the_rate_is_a_line_up_and_a_line_down() -> None:
    made = peaking(100)
    assert [made.rate(step) for step in range(10)] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert [made.rate(step) for step in range(10, 101)] == pytest.approx([(100 - step) / 90 for step in range(10, 101)])


def test_a_training_of_one_step_takes_it_at_the_peak() -> None:
    assert peaking(1).rate(0) == 1


def test_a_saved_recipe_is_the_same_after_json() -> None:
    for method in METHODS:
        made = recipe(method=method)
        assert made.differences(json.loads(json.dumps(dataclasses.asdict(made)))) == []


def test_differences_name_what_differs_or_is_not_there() -> None:
    made = recipe(method="dexml")
    saved = json.loads(json.dumps(dataclasses.asdict(made)))
    saved["seed"] += 1
    saved["encoder"]["pooling"] = "cls"
    saved["hard_negatives"] = 2
    del saved["precision"]
    assert sorted(made.differences(saved)) == ["encoder", "hard_negatives", "precision", "seed"]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Recipe)])
def test_no_attribute_may_differ_unnoticed(field: str) -> None:
    made = recipe()
    assert made.differences(dataclasses.asdict(made) | {field: "another"}) == [field.removesuffix("_sha256")]


def test_once_trained_only_what_was_made_counts_not_where() -> None:
    made = recipe()
    saved = dataclasses.asdict(made) | {"micro_batch": 8, "ranks": 2, "device": "cuda", "seed": 1}
    assert made.differences(saved, trained=True) == ["seed"]
    assert made.differences(saved) == ["seed", "micro_batch", "ranks", "device"]
