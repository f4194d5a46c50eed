"""Presets: their values and sources, `recollect presets`, and trainings with `--preset` and `--scale`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import recollect
from recollect.index_builder.settings import BuildSettings, EvaluateSettings
from recollect.trainer.errors import TrainingError
from recollect.trainer.presets.preset import Preset, all_presets, find_preset
from recollect.trainer.train_settings import TrainSettings
from tests.trainer.conftest import TinyEncoder
from tests.trainer.runs import training

RAE = "rae/lf-amazontitles-131k"
PRIME = "prime/lf-amazontitles-131k"


def settings(**given: Any) -> TrainSettings:
    """The settings of `recollect train`. A preset with two stages needs an encoder, for which the default stands."""
    two_stages = given.get("preset") in all_presets() and all_presets()[given["preset"]].first_stage
    start = {"encoder": TrainSettings.model_fields["encoder"].default} if two_stages else {}
    return TrainSettings(**({"dataset": Path("data"), "out": Path("run")} | start | given))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `recollect presets`, and return its status, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = recollect.main(["presets", *arguments])
        return status, *capsys.readouterr()

    return call


# ---- Data ----


@pytest.mark.parametrize("preset", all_presets().values(), ids=lambda preset: preset.name)
def test_train_and_evaluate_accept_the_values_of_each_preset(preset: Preset) -> None:
    parsed = settings(preset=preset.name)
    assert parsed.method == preset.method
    unread = {name for name in preset.flags if parsed.unread(name)}
    assert unread <= {"propensity", "validate_lambda"}  # of the dataset, and of the evaluation
    values = {"method": preset.method} | {name: flag.value for name, flag in preset.flags.items()}
    as_given = settings(**{name: value for name, value in values.items() if not parsed.unread(name)})
    assert parsed.model_dump(exclude={"preset", *unread}) == as_given.model_dump(exclude={"preset", *unread})
    answering = {name: flag.value if name == "propensity" else [flag.value] for name, flag in preset.evaluate.items()}
    EvaluateSettings(dataset=Path("data"), store="store", **answering)
    BuildSettings(run=Path("run"), store="store", **{name: flag.value for name, flag in preset.build.items()})
    if parsed.epochs != 0:
        assert parsed.validate_lambda == [preset.evaluate["lambda"].value]


@pytest.mark.parametrize("preset", all_presets().values(), ids=lambda preset: preset.name)
def test_each_value_has_a_source_and_no_value_is_missing_too(preset: Preset) -> None:
    for flag in [*preset.flags.values(), *preset.build.values(), *preset.evaluate.values()]:
        keys = re.findall(r"(?:^|; | and |, and )([A-Z])\b", flag.source)
        assert keys, flag
        assert set(keys) <= set(preset.sources), flag
    assert not set(preset.missing) & set(preset.flags)
    assert set(preset.missing) <= set(TrainSettings.model_fields)


def test_key_of_a_source_has_one_meaning_in_a_preset() -> None:
    paths = [path for path in files("recollect.trainer.presets").iterdir() if path.name.endswith(".toml")]
    keys = {path.name: set(tomllib.loads(path.read_text())["sources"]) for path in paths}
    shared = keys.pop("datasets.toml")
    assert keys
    assert not {name for name, own in keys.items() if own & shared}


# Method, batch, learning rate, epochs or steps, tokens and further values, as the papers print them: RAE-XMC Table 7,
# DEXML Table 7, PRIME Table 10 and section 4.2 (and its code), UniDEC Tables 1, 6 and 7.
PRINTED: dict[str, dict[str, Any]] = {
    "rae/lf-amazontitles-131k": {"batch_size": 7168, "learning_rate": 3e-4, "max_steps": 3000, "mine_every": 1000},
    "rae/lf-wikiseealso-320k": {"batch_size": 4608, "learning_rate": 2e-4, "max_steps": 3000, "max_length": 128},
    "rae/lf-wikipedia-500k": {"batch_size": 3200, "mine_every": 7000, "mine_top": 25, "validate_lambda": [0.01]},
    "rae/lf-amazontitles-1.3m": {"batch_size": 7168, "max_steps": 40000, "mine_every": 8000, "mine_top": 50},
    "dexml/eurlex-4k": {"learning_rate": 2e-4, "batch_size": 1024, "embedding_dropout": 0.1, "temperature": 0.05},
    "dexml/lf-amazontitles-131k": {"learning_rate": 4e-4, "batch_size": 4096, "embedding_dropout": 0, "max_length": 32},
    "dexml/lf-wikipedia-500k": {"learning_rate": 4e-4, "batch_size": 4096, "embedding_dropout": 0.1, "temperature": 1},
    "dexml/lf-amazontitles-1.3m": {"learning_rate": 8e-4, "batch_size": 8192, "micro_batch": 1024, "temperature": 1},
    "dexml/eurlex-4k-softtop5": {"learning_rate": 2e-4, "positives": 0, "softtopk_k": 5, "softtopk_alpha": 2},
    "dexml/lf-wikipedia-500k-hnm10": {"batch_size": 2048, "hard_negatives": 10, "mine_top": 100, "normalise": False},
    "dexml/lf-amazontitles-1.3m-hnm10": {"batch_size": 8192, "hard_negatives": 10, "positives": 1, "temperature": 1},
    "rae-inference/lf-amazontitles-131k-dexml": {"epochs": 0, "max_length": 32, "normalise": True},
    "rae-inference/lf-amazontitles-1.3m-dexml": {"epochs": 0, "max_length": 32, "normalise": False},
    "prime/lf-amazontitles-131k": {"bank": 65536, "batch_size": 3200, "epochs": 300, "learning_rate": 3e-4},
    "prime/lf-amazon-131k": {"batch_size": 512, "epochs": 300, "learning_rate": 3e-4, "max_length": 128},
    "prime/lf-amazontitles-1.3m": {"bank": 131072, "batch_size": 3200, "positives": 2, "margin": (0.1, 0.3)},
    "prime/lf-amazontitles-1.3m-lite": {"bank": 131072, "batch_size": 1600, "positives": 1},
    "prime/lf-wikititles-500k": {"batch_size": 3200, "learning_rate": 2e-4, "propensity": (0.5, 0.4), "max_length": 32},
    "prime/lf-wikipedia-500k": {"batch_size": 512, "epochs": 50, "learning_rate": 1e-4, "max_length": 256},
    "prime/lf-wikiseealso-320k": {"batch_size": 1024, "epochs": 200, "learning_rate": 1e-4, "max_length": 128},
    "prime/lf-amazontitles-131k-released": {"batch_size": 1600, "learning_rate": 2e-4, "triplet_negatives": 100},
    "prime+ngame/lf-amazontitles-1.3m": {"epochs": 100, "triplet_negatives": 5, "train": "head", "margin": (0.2, 0.2)},
    "supcon/lf-amazontitles-1.3m": {"projection": 384, "positives": 1, "hard_negatives": 6, "batch_size": 1098},
    "unidec/lf-amazon-131k": {"projection": 384, "positives": 3, "hard_negatives": 6, "table_learning_rate": 1e-3},
    "unidec/lf-amazontitles-1.3m": {"projection": 256, "positives": 1, "hard_negatives": 6, "epochs": 150},
    "unidec/lf-amazontitles-131k": {"warmup": 0.02, "mine_every_epochs": 5, "cluster_every": 5, "weight_decay": 0.05},
}


@pytest.mark.parametrize("name", PRINTED)
def test_presets_have_the_values_that_the_papers_print(name: str) -> None:
    parsed = settings(preset=name)
    assert {flag: getattr(parsed, flag) for flag in PRINTED[name]} == PRINTED[name]


@pytest.mark.parametrize("preset", all_presets().values(), ids=lambda preset: preset.name)
def test_presets_train_on_all_instances_and_clip_no_gradients_as_the_published_experiments(preset: Preset) -> None:
    parsed = settings(preset=preset.name)
    if parsed.epochs != 0:
        assert (parsed.validation_fraction, parsed.clip_norm) == (0, 0)


@pytest.mark.parametrize(("instances", "source"), [(1_813_391, "RAE-XMC Table 6"), (1_779_881, "DEXML Table 6")])
def test_preset_names_the_published_variant_of_the_data(instances: int, source: str) -> None:
    found = find_preset("rae/lf-wikipedia-500k").describe_variant(instances, 501_070)
    assert found.endswith(f"found LF-Wikipedia-500K with {instances:,} instances and 501,070 labels ({source})")


# ---- recollect presets ----


def test_table_has_a_row_for_each_preset(run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run()
    head, *lines = out.splitlines()
    assert (status, err) == (0, "")
    assert head.split("  ")[0] == "preset"
    assert [line.split()[0] for line in lines[: len(all_presets())]] == list(all_presets())
    assert "7168" in next(line for line in lines if line.startswith(RAE))


def test_details_show_each_value_with_its_source_and_the_commands(run: Callable[..., tuple[int, str, str]]) -> None:
    preset = find_preset(PRIME)
    status, out, _ = run(preset.name)
    assert status == 0
    for name, flag in preset.flags.items():
        assert re.search(rf"--{name.replace('_', '-')} .*{re.escape(flag.source)}$", out, re.MULTILINE)
    for text in [preset.figure, *preset.missing.values(), *preset.differences, *preset.sources.values()]:
        assert text in out
    commands = [line.split()[1:] for line in out.splitlines() if line.startswith("recollect ") and "--" in line]
    assert [command[0] for command in commands] == ["train", "build", "evaluate"]
    for name, *arguments in commands:
        recollect.cli.command_line._from_arguments(name, arguments)  # the command is valid


def test_json_has_all_presets_or_one(run: Callable[..., tuple[int, str, str]]) -> None:
    every = json.loads(run("--json")[1])
    assert [preset["name"] for preset in every] == list(all_presets())
    one = json.loads(run(RAE, "--json")[1])
    assert one in every
    assert one["flags"]["batch_size"] == {"value": 7168, "source": "P Table 7: 896 on each of 8 GPUs"}
    assert one["variants"][0]["instances"] == 294_805


def test_unknown_name_gives_one_line_with_similar_names(run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run("rae/lf-amazontitles")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert RAE in err


# ---- --preset and --scale ----


def test_flags_override_values_of_a_preset() -> None:
    plain, changed = settings(preset=RAE), settings(preset=RAE, batch_size=7, encoder="minilm")
    assert (changed.batch_size, changed.encoder) == (7, "minilm")
    names = {"batch_size", "encoder"}
    assert changed.model_dump(exclude=names) == plain.model_dump(exclude=names)


def test_method_of_another_preset_is_refused() -> None:
    assert settings(preset=RAE, method="rae").preset == RAE
    with pytest.raises(TrainingError, match=f"--method dexml: expected rae, the method of --preset {RAE}; omit"):
        settings(preset=RAE, method="dexml")


def test_scale_without_a_preset_is_refused() -> None:
    with pytest.raises(TrainingError, match="--scale: expected --preset, whose values it multiplies, found none"):
        settings(scale=0.5)


@pytest.mark.parametrize("name", [name for name in all_presets() if name.startswith("prime/")])
def test_schedule_of_clusters_of_prime_is_that_of_the_released_file_scaled_to_the_epochs(name: str) -> None:
    parsed = settings(preset=name)
    assert parsed.epochs is not None
    scale = parsed.epochs / 300
    assert parsed.cluster_from == round(10 * scale)
    assert parsed.cluster_double_at == [round(scale * epoch) for epoch in (25, 50, 75, 100, 125, 150, 200)]


def test_scale_makes_a_training_smaller() -> None:
    small = settings(preset=RAE, scale=0.01)
    assert (small.encoder, small.train, small.pooling) == ("static", "full", "auto")
    assert (small.batch_size, small.max_steps, small.mine_every) == (72, 30, 10)
    small = settings(preset=PRIME, scale=0.1)
    assert (small.batch_size, small.epochs, small.bank, small.warmup) == (320, 30, None, 0.1)
    assert (small.cluster_from, small.cluster_every) == (1, 1)
    assert small.cluster_double_at == [2, 5, 7, 10, 12, 15, 20]
    small = settings(preset="dexml/eurlex-4k-released-hnm", scale=0.001)
    assert (small.batch_size, small.epochs, small.mine_from) == (8, 1, 0)
    assert (small.max_length, small.label_max_length) == (32, 32)
    assert (small.learning_rate, small.mine_top, small.temperature) == (5e-5, 100, 0.05)


# The other presets differ from these and from each other in numbers.
@pytest.mark.parametrize("name", ["dexml/lf-wikipedia-500k", PRIME, "supcon/lf-amazontitles-1.3m"])
def test_preset_trains_and_tunes_if_it_is_scaled_down(
    name: str, lesson: Path, tiny_bert: TinyEncoder, run_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"encoder": str(tiny_bert.folder), "validation_fraction": 0.2}
    recollect.train(lesson, out=run_folder, preset=name, scale=0.001, **given)
    assert f"--preset {name}: expected {find_preset(name).dataset} with " in capfd.readouterr().err
    recipe = training(run_folder)["recipe"]
    assert (recipe["preset"], recipe["scale"], recipe["method"]) == (name, 0.001, find_preset(name).method)
    assert {"lambda", "score"} <= recollect.tune(run_folder).keys()


NGAME = "prime+ngame/lf-amazontitles-131k"


class TestTwoStages:
    def test_second_stage_without_a_run_to_start_from_is_refused(self) -> None:
        with pytest.raises(TrainingError, match=f"--preset {re.escape(NGAME)}: expected --from with a run of --preset"):
            TrainSettings(dataset=Path("data"), out=Path("run"), preset=NGAME)

    def test_commands_of_a_second_stage_train_the_first_stage_first(
        self, run: Callable[..., tuple[int, str, str]]
    ) -> None:
        lines = run(NGAME)[1].splitlines()
        first = lines.index(f"recollect train LF-AmazonTitles-131K --out first --preset {PRIME}")
        assert lines[first + 1] == f"recollect train LF-AmazonTitles-131K --out run --preset {NGAME} --from first"

    def test_second_stage_trains_the_classifier_on_the_frozen_encoder_and_is_served(
        self, lesson: Path, tiny_bert: TinyEncoder, tmp_path: Path
    ) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        recollect.train(lesson, out=first, preset=PRIME, scale=0.001, tune="no", encoder=str(tiny_bert.folder))
        recollect.train(lesson, out=second, preset=NGAME, scale=0.02, from_=first, tune="no")
        recipe = training(second)["recipe"]
        assert (recipe["method"], recipe["train"], recipe["encoder"]["max_length"]) == ("ngame", "head", 32)
        weights, old = (load_file(run / "checkpoint" / "model.safetensors") for run in (second, first))
        assert all((weights[name] == old[name]).all() for name in old)
        recollect.build(second, store=tmp_path / "store", index="flat", lexical="off", activate=True)
        assert len(recollect.open(tmp_path / "store").predict("lawn over chair", top_k=3, lambda_=0)) == 3
