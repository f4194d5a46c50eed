"""`recollect plan`: the arithmetic of memory and time, and a plan that agrees with a real training."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.trainer.plan.hours import estimate_hours
from recollect.trainer.plan.listing import listing
from recollect.trainer.plan.memory import Part, Sizes, parts, peak_bytes
from recollect.trainer.plan.plan import Plan
from recollect.trainer.plan.trial import STEPS, Trial
from recollect.trainer.recipe import Recipe
from tests.trainer.runs import USUAL, training

REPOSITORY = Path(__file__).parents[2]

SIZES = Sizes(
    ranks=8,
    instances=13_000_000,
    labels=3_000_000,
    pairs=60_000_000,
    tokens=400_000_000,
    text_bytes=2_000_000_000,
    dim=768,
    key_dim=768,
    views=768,
    batch=8_192,
    pool=40_000,
    mined=50,
    clustered=False,
    summed=False,
    enriched=False,
    followed=False,
    head_bytes=0,
    trained_bytes=265_000_000,
    exchanged_bytes=200_000_000,
)
TRIAL = Trial(
    recipe={},
    instances=1_000,
    labels=600,
    pairs=4_000,
    text_bytes=100_000,
    key_dim=768,
    seconds={"gradient": 12.0, "optimizer": 0.6, "validate": 32.0, "encode": 16.0},
    peak_bytes=10**9,
    peak_gpu_bytes=0,
    trained=66_000_000,
)
OF_TRIAL = dataclasses.replace(SIZES, ranks=1, instances=1_000, labels=600, batch=1_024, pool=600)


def size(sizes: Sizes, name: str) -> int:
    return sum(part.size_bytes for part in parts(sizes) if part.name == name)


def changed(**values: Any) -> Sizes:
    return dataclasses.replace(SIZES, **values)


def test_keys_of_a_rank_are_its_share_of_the_instances_and_all_labels() -> None:
    expected = 4 * 768 * (13_000_000 // 8 + 3_000_000)
    assert size(SIZES, "keys: own instances, all labels") == expected
    assert size(changed(ranks=1), "keys: own instances, all labels") == 4 * 768 * 16_000_000


def test_only_the_mined_negatives_shrink_with_more_ranks() -> None:
    for ranks in (1, 8):
        assert size(changed(ranks=ranks), "token tables") == 4 * 400_000_000 + 8 * 16_000_000
        assert size(changed(ranks=ranks), "mined negatives") == 4 * 50 * (13_000_000 // ranks)


def test_adapter_has_vectors_instead_of_token_tables() -> None:
    adapter = changed(tokens=0, summed=True)
    assert size(adapter, "token tables") == 0
    assert size(adapter, "vectors of all instances") == 4 * 768 * 13_000_000
    assert size(adapter, "sums of label inputs") == 4 * 768 * 3_000_000
    assert [part.name for part in parts(adapter) if part.mapped] == ["vectors of the frozen encoder"]


def test_instance_vectors_of_a_head_are_a_share_in_half_precision() -> None:
    assert size(changed(followed=True), "instance vectors of the head") == 2 * 768 * 13_000_000 // 8


def test_single_rank_exchanges_no_gradients() -> None:
    assert size(SIZES, "gradients in one exchange") == SIZES.exchanged_bytes
    assert size(changed(ranks=1), "gradients in one exchange") == 0


def test_peak_has_the_parts_of_the_larger_phase_only() -> None:
    found = parts(SIZES)
    always, step, keys = (sum(p.size_bytes for p in found if p.phase == phase) for phase in ("always", "step", "keys"))
    assert keys > step
    assert peak_bytes(found) == always + keys


def recipe(**values: Any) -> Recipe:
    given = {
        "encoder": {},
        "encoder_sha256": "",
        "dataset_sha256": "",
        "method": "rae",
        "train": "full",
        "steps": 9_000,
        "epochs": 6,
        "batch_size": 8_192,
        "learning_rate": 1e-4,
        "temperature": 0.04,
        "hard_negatives": 3,
        "mine_every": 1_587,
        "mine_top": 50,
        "mine_search": "exact",
        "positives": 2,
        "validation_fraction": 0.0,
        "label_inputs": "text",
        "label_key_alpha": 0.0,
        "precision": "bf16",
        "seed": 0,
    }
    return Recipe(**(given | values))


def hours(given: Recipe, sizes: Sizes = SIZES, held_out: int = 4_000) -> dict[str, float]:
    return estimate_hours(given, sizes, OF_TRIAL, TRIAL, held_out, comparisons_per_second=1e12)


def test_steps_take_the_time_of_the_trial_for_the_same_number_of_texts_on_a_rank() -> None:
    texts = (8_192 + 40_000) / 8 / (1_024 + 600)
    assert hours(recipe())["steps"] == pytest.approx(9_000 * (12.0 * texts + 0.6) / STEPS / 3_600)


def test_validations_are_counted_by_epoch_or_by_the_flag() -> None:
    by_epoch = hours(recipe())["validate"]
    assert hours(recipe(validate_every=900))["validate"] == pytest.approx(by_epoch * 11 / 7)
    assert "validate" not in hours(recipe(), held_out=0)


def test_each_rank_encodes_its_share_and_searches_its_instances() -> None:
    found = hours(recipe())
    encoding = 16_000_000 / 8 * 16 / 1_600
    assert found["write the memory"] == pytest.approx(encoding / 3_600)
    assert found["encode with the frozen encoder"] == pytest.approx(encoding / 3_600)
    assert found["validate"] == pytest.approx(7 * (encoding + 4_000 * 2_000_000 / 1e12) / 3_600)
    searching = 13_000_000 / 8 * 3_000_000 / 1e12
    assert found["mine"] == pytest.approx(6 * searching / 3_600)  # at the ends of epochs, with the validation's keys
    assert hours(recipe(mine_every=1_000))["mine"] == pytest.approx(9 * (searching + encoding) / 3_600)


def test_training_with_a_time_limit_takes_at_most_this_time() -> None:
    found, without_limit = hours(recipe(max_seconds=1_800.0, steps=10**9)), hours(recipe())
    assert found["steps"] == pytest.approx(0.5, rel=0.01)
    # The steps within the limit are less than an epoch: two validations instead of seven, one mining instead of six.
    assert found["validate"] / without_limit["validate"] == pytest.approx(2 / 7)
    assert found["mine"] / without_limit["mine"] == pytest.approx(1 / 6)


def run_in_new_process(*words: str) -> str:
    """Run `recollect` in a process that shares no memory with this one, and return its output."""
    command = [sys.executable, "-m", "recollect", *words]
    return subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize(
    "flags",
    [["--method", "prime"], ["--train", "full", "--method", "unidec"]],
)
@pytest.mark.slow
def test_plan_of_a_small_training_agrees_with_its_peak_memory(
    lesson: Path, tiny_bert: Any, tmp_path: Path, flags: list[object]
) -> None:
    words = [str(word) for word in (lesson, *USUAL, "--encoder", tiny_bert.folder, *flags)]
    found = json.loads(run_in_new_process("plan", *words, "--json"))
    run_in_new_process("train", *words, "--out", str(tmp_path / "run"))
    real = training(tmp_path / "run")
    assert (found["steps"], found["epochs"]) == (real["recipe"]["steps"], real["recipe"]["epochs"])
    assert found["rank_bytes"] == pytest.approx(real["measured"]["peak_memory_bytes"], rel=0.5)
    assert found["total_hours"] == sum(found["hours"].values()) > 0


def test_listing_sums_small_parts_and_counts_single_things_in_the_singular() -> None:
    found = [Part("keys", 6 * 10**8, "keys"), Part("clusters", 100), Part("mined negatives", 200_000)]
    sizes = changed(ranks=1, instances=20)
    plan = Plan(recipe(steps=1, epochs=1), sizes, "cpu", 10**9, 10**9, 0, 4 * 10**8, found, {"steps": 0.001})
    lines = listing(plan)
    assert lines[1] == "rae, full: 1 step (1 epoch) of 8,192 queries, 1 process on the CPU"
    start = lines.index("memory of one process by part") + 1
    assert [line.split() for line in lines[start : start + 3]] == [
        ["keys,", "in", "a", "validation", "or", "mining", "600.0", "MB"],
        ["program,", "encoder,", "micro-batch", "(measured)", "400.0", "MB"],
        ["other", "parts", "together", "0.2", "MB"],
    ]
    assert lines[-1].split() == ["steps", "3.6", "s"]


def test_plan_reads_the_dataset_with_the_flags_of_the_training(
    tmp_path: Path, tiny_bert: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    subject = "<http://example.org/{}>"
    names = ["red", "green", "blue"]
    (tmp_path / "vocab.tsv").write_text("".join(f"{subject.format(name)}\t{name}\n" for name in names))
    rows = [f"a {name} thing\t{subject.format(name)} {subject.format('unknown')}\n" for name in names * 4]
    (tmp_path / "train.tsv").write_text("".join(rows))
    words = [str(word) for word in ("plan", tmp_path, *USUAL, "--encoder", tiny_bert.folder)]
    assert recollect.main(words) == 2
    assert "--unknown-labels drop" in capsys.readouterr().err
    assert recollect.main([*words, "--unknown-labels", "drop"]) == 0
    assert "12 instances, 3 labels" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--best", "--epochs=0"])
def test_plan_without_one_training_is_refused(lesson: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert recollect.main(["plan", str(lesson), flag]) == 2
    assert f"{flag.replace('=', ' ')}: expected one training to plan" in capsys.readouterr().err
