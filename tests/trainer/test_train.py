"""`recollect train` that trains: what it learns and leaves, what a kill costs it, what it refuses."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import recollect
from tests.trainer.conftest import load
from tests.trainer.helpers import PATIENCE_SECONDS, Moment, files, run_recollect
from trainer import run as walk
from trainer import run_log
from trainer import train as loop
from trainer.checkpoint import encoder_digest, load_checkpoint
from trainer.encoder import Encoder
from trainer.memory import DEFAULTS, open_memory
from trainer.methods import METHODS
from trainer.validation import Validation

REPOSITORY = Path(__file__).parents[2]
INSTANCES, LABELS, HELD_OUT = 60, 12, 12
# 47 or 48 of 60 instances to train on: 6 steps an epoch.
STEPS_PER_EPOCH = 6
USUAL = ["--max-length", 16, "--label-max-length", 8, "--batch-size", 8, "--epochs", 3, "--validation-fraction", 0.2]
LEFT = {"checkpoint", "memory", "metrics.jsonl", "training.json"}


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """What is said at the end; it must be one plain line."""
        lines = self.err.splitlines()
        assert sum(line.startswith("recollect train: ") for line in lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[-1]


Train = Callable[..., Outcome]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def flags(lesson: Path, tiny_bert: Any, run_folder: Path) -> list[object]:
    """`recollect train` on the lesson, with the tiny encoder; flags given later win."""
    return ["train", lesson, "--out", run_folder, "--encoder", tiny_bert.folder, *USUAL]


@pytest.fixture
def train(flags: list[object], capfd: pytest.CaptureFixture[str]) -> Train:
    def run(*more: object) -> Outcome:
        capfd.readouterr()
        status = recollect.main([str(argument) for argument in (*flags, *more)])
        return Outcome(status, *capfd.readouterr())

    return run


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of `metrics.jsonl` for every step."""
    monkeypatch.setattr(run_log, "_SECONDS_BETWEEN_LINES", 0)


def metrics(folder: Path, name: str) -> dict[int, float]:
    """One of the log's values, by step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def training(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return saved


def texts(folder: Path, name: str) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "memory" / name).read_text("utf-8").splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint's weights."""
    found = load_file(folder / "checkpoint" / "model.safetensors")
    adapter = folder / "checkpoint" / "adapter.safetensors"
    return found | (
        {f"adapter.{name}": weight for name, weight in load_file(adapter).items()} if adapter.exists() else {}
    )


def results(folder: Path) -> dict[str, bytes]:
    """What must not depend on what happened on the way: weights and keys, byte for byte."""
    paths = [*(folder / "checkpoint").glob("*.safetensors"), folder / "memory" / "keys.npy"]
    return {path.name: path.read_bytes() for path in paths}


class TestTraining:
    @pytest.mark.usefixtures("every_step")
    @pytest.mark.parametrize("what", ["adapter", "full"])
    @pytest.mark.parametrize("method", METHODS)
    def test_lowers_the_loss_and_remembers_with_what_it_learnt(
        self, train: Train, run_folder: Path, tiny_bert: Any, method: str, what: str
    ) -> None:
        outcome = train("--train", what, "--method", method, "--validation-fraction", 0, "--learning-rate", 2e-3)
        assert (outcome.status, outcome.out) == (0, "")
        assert f"train: {method}, {what}, 24 steps of 8 queries, 0 instances held out" in outcome.err
        assert {path.name for path in run_folder.iterdir()} == LEFT
        losses = list(metrics(run_folder, "loss").values())
        assert len(losses) == 24
        assert np.mean(losses[-8:]) < np.mean(losses[:8])

        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        assert (encoder.model.adapter is not None) == (what == "adapter")
        assert encoder_digest(encoder) == memory.plan.encoder_sha256
        assert encoder_digest(encoder) != encoder_digest(load(tiny_bert.folder))
        assert (encoder_digest(encoder.without_adapter()) == encoder_digest(load(tiny_bert.folder))) == (
            what == "adapter"
        )
        np.testing.assert_allclose(
            memory.instance_keys, encoder.encode(texts(run_folder, "instances.jsonl"), 16), atol=1e-5
        )
        np.testing.assert_allclose(
            memory.keys[INSTANCES:], encoder.encode(texts(run_folder, "labels.jsonl"), 8), atol=1e-5
        )
        assert memory.defaults == DEFAULTS

    @pytest.mark.parametrize("what", ["adapter", "full"])
    def test_notes_its_recipe_and_how_it_ended(self, train: Train, run_folder: Path, what: str) -> None:
        outcome = train("--train", what, "--seed", 5)
        saved = training(run_folder)
        assert saved["done"]
        assert (saved["recipe"]["method"], saved["recipe"]["train"], saved["recipe"]["seed"]) == ("rae", what, 5)
        assert saved["progress"]["step"] == saved["recipe"]["steps"] == 3 * STEPS_PER_EPOCH
        scores = metrics(run_folder, "validation_ndcg_5")
        assert list(scores) == [0, 6, 12, 18]
        best = max(scores, key=lambda step: (scores[step], -step))
        assert (saved["progress"]["best"], saved["progress"]["best_step"]) == (scores[best], best)
        assert f"train: best after {best} of 18 steps, validation nDCG@5 {scores[best]:.2f}" in outcome.err
        assert list(metrics(run_folder, "loss")) == [18]

    def test_leaves_the_best_checkpoint_not_the_last(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train("--max-steps", 12, "--validation-fraction", 0, "--out", run_folder.with_name("twelve"))
        scores: Iterator[float] = iter([5.0, 10.0, 30.0, 20.0])
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        outcome = train()
        assert "train: best after 12 of 18 steps, validation nDCG@5 30.00" in outcome.err
        saved = training(run_folder)["progress"]
        assert (saved["best"], saved["best_step"], saved["step"]) == (30, 12, 18)
        kept = load_checkpoint(run_folder / "checkpoint", "cpu")
        assert encoder_digest(kept) == open_memory(run_folder / "memory").plan.encoder_sha256

    def test_that_makes_nothing_better_leaves_the_encoder_it_began_with(
        self, train: Train, run_folder: Path, tiny_bert: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scores: Iterator[float] = iter([50.0, 50.0, 49.0, 0.0])
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        assert "best after 0 of 18 steps" in train("--train", "full").err
        assert encoder_digest(load_checkpoint(run_folder / "checkpoint", "cpu")) == encoder_digest(
            load(tiny_bert.folder)
        )

    def test_held_out_instances_are_remembered_but_not_learnt_from(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: set[int] = set()
        backward = loop.Objective.backward

        def watched(self: Any, batch: Any) -> float:
            seen.update(batch.rows.tolist())
            return backward(self, batch)

        monkeypatch.setattr(loop.Objective, "backward", watched)
        assert f"{HELD_OUT} instances held out" in train("--epochs", 1).err
        assert len(seen) == INSTANCES - HELD_OUT
        assert open_memory(run_folder / "memory").plan.instances == INSTANCES

    def test_ends_after_so_many_steps_when_told_to(self, train: Train, run_folder: Path) -> None:
        train("--max-steps", 8)
        assert training(run_folder)["progress"]["step"] == 8
        assert list(metrics(run_folder, "validation_ndcg_5")) == [0, 6, 8]

    def test_seeds_lead_to_other_weights_and_one_seed_to_the_same(self, train: Train, run_folder: Path) -> None:
        found = {}
        for name, seed in (("a", 0), ("b", 0), ("c", 1)):
            folder = run_folder.with_name(name)
            train("--out", folder, "--seed", seed, "--validation-fraction", 0, "--max-steps", 6)
            found[name] = results(folder)
        assert found["a"] == found["b"]
        assert found["a"]["adapter.safetensors"] != found["c"]["adapter.safetensors"]

    def test_in_small_micro_batches_learns_nearly_the_same(
        self, train: Train, run_folder: Path, steady_encoder: Path
    ) -> None:
        few = ["--train", "full", "--encoder", steady_encoder, "--validation-fraction", 0, "--max-steps", 3]
        train(*few)
        train(*few, "--micro-batch", 3, "--out", run_folder.with_name("micro"))
        np.testing.assert_allclose(
            open_memory(run_folder / "memory").keys,
            open_memory(run_folder.with_name("micro") / "memory").keys,
            atol=1e-3,
        )

    @pytest.mark.usefixtures("every_step")
    def test_a_learning_rate_rises_and_falls(self, train: Train, run_folder: Path) -> None:
        train("--learning-rate", 0.01, "--max-steps", 12, "--epochs", 4)
        rates = list(metrics(run_folder, "learning_rate").values())
        assert rates == pytest.approx([0.005, 0.01] + [0.001 * left for left in range(10, 0, -1)])

    def test_enriched_label_keys_are_asked_in_validation_and_noted_in_the_memory(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        score = Validation.score

        def watched(self: Validation, keys: Any) -> float:
            asked.append(self.alpha)
            return score(self, keys)

        monkeypatch.setattr(Validation, "score", watched)
        train("--label-keys", "enriched", "--label-key-alpha", 0.25, "--epochs", 1)
        assert asked == [0.25, 0.25]
        assert open_memory(run_folder / "memory").defaults == DEFAULTS | {"label_key_alpha": 0.25}

    def test_half_precision_keys_are_those_the_checkpoint_makes(self, train: Train, run_folder: Path) -> None:
        train("--key-dtype", "float16", "--epochs", 1)
        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        assert memory.keys.dtype == np.float16
        found = encoder.encode(texts(run_folder, "labels.jsonl"), 8)
        np.testing.assert_allclose(memory.keys[INSTANCES:], found, atol=1e-3)

    def test_goes_on_from_a_checkpoint_with_its_adapter(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train("--validation-fraction", 0)
        second = run_folder.with_name("second")
        monkeypatch.setattr(Validation, "score", lambda *_: 1.0)  # nothing is better than the start
        assert train("--encoder", run_folder / "checkpoint", "--out", second, "--max-steps", 1).status == 0
        assert results(second)["adapter.safetensors"] == results(run_folder)["adapter.safetensors"]
        np.testing.assert_array_equal(open_memory(second / "memory").keys, open_memory(run_folder / "memory").keys)

    def test_of_a_whole_checkpoint_teaches_encoder_and_adapter(self, train: Train, run_folder: Path) -> None:
        train("--validation-fraction", 0, "--max-steps", 2)
        second = run_folder.with_name("second")
        more = ["--encoder", run_folder / "checkpoint", "--train", "full", "--validation-fraction", 0, "--max-steps", 2]
        assert train(*more, "--out", second).status == 0
        before, after = weights(run_folder), weights(second)
        assert {name for name in before if torch.equal(before[name], after[name])} == {
            name for name in before if name.startswith("pooler.")
        }
        encoder = load_checkpoint(second / "checkpoint", "cpu")
        found = encoder.encode(texts(second, "labels.jsonl"), 8)
        np.testing.assert_allclose(open_memory(second / "memory").keys[INSTANCES:], found, atol=1e-5)


class TestVectors:
    @pytest.fixture
    def vectors(self, train: Train, tmp_path: Path) -> Path:
        """The memory of the encoder as it is."""
        assert train("--epochs", 0, "--out", tmp_path / "zero").status == 0
        return tmp_path / "zero" / "memory"

    def test_that_are_given_make_the_same_adapter_and_nothing_is_encoded(
        self, train: Train, run_folder: Path, vectors: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = files(vectors)
        train()
        with monkeypatch.context() as context:
            context.setattr(Encoder, "encode", lambda *_: pytest.fail("nothing should be encoded"))
            assert train("--vectors", vectors, "--out", run_folder.with_name("given")).status == 0
        assert results(run_folder.with_name("given")) == results(run_folder)
        assert files(vectors) == before
        assert {path.name for path in run_folder.with_name("given").iterdir()} == LEFT

    def refused(self, train: Train, run_folder: Path, *more: object) -> str:
        outcome = train(*more)
        assert (outcome.status, outcome.out) == (2, "")
        assert not run_folder.exists()
        return outcome.message

    def test_of_another_dataset_are_refused(
        self, train: Train, run_folder: Path, vectors: Path, lesson: Path, tmp_path: Path
    ) -> None:
        other = Path(shutil.copytree(lesson, tmp_path / "other"))
        text = (other / "train.jsonl").read_text("utf-8")
        (other / "train.jsonl").write_text(text.replace("garden", "lawn"), "utf-8")
        status = recollect.main(
            ["train", str(other), "--out", str(run_folder), *map(str, USUAL), "--vectors", str(vectors)]
            + ["--encoder", json.loads((vectors / "memory.json").read_text())["encoder"]["name"]]
        )
        assert status == 2
        message = self.refused(train, run_folder, "--vectors", vectors, "--encoder", vectors.parent / "checkpoint")
        assert "found a memory that differs in encoder;" in message
        assert not run_folder.exists()

    def test_of_another_encoder_are_refused(
        self, train: Train, run_folder: Path, vectors: Path, tiny_distilbert: Any
    ) -> None:
        message = self.refused(train, run_folder, "--vectors", vectors, "--encoder", tiny_distilbert.folder)
        assert f"--vectors {vectors}: expected the float32 keys that this encoder makes of this dataset" in message
        assert "found a memory that differs in encoder, encoder_sha256; leave the flag out" in message

    def test_of_another_dtype_are_refused(self, train: Train, run_folder: Path, tmp_path: Path) -> None:
        train("--epochs", 0, "--out", tmp_path / "half", "--key-dtype", "float16")
        message = self.refused(train, run_folder, "--vectors", tmp_path / "half" / "memory")
        assert "differs in key_dtype;" in message

    def test_that_are_not_there_are_refused(self, train: Train, run_folder: Path, tmp_path: Path) -> None:
        message = self.refused(train, run_folder, "--vectors", tmp_path / "none")
        assert f"{tmp_path / 'none'}: expected a memory, found none" in message

    def test_teach_no_whole_encoder(self, train: Train, run_folder: Path, vectors: Path) -> None:
        message = self.refused(train, run_folder, "--vectors", vectors, "--train", "full")
        assert "--vectors: expected --train adapter" in message


# Where a training may be killed. Its state is saved after every step.
ON_THE_WAY = [
    Moment("trainer.memory._write_progress", 2),  # some of the frozen keys are there
    Moment("trainer.train.save_state", 1),  # nothing is saved yet but the first checkpoint
    Moment("trainer.objective.Objective.backward", 8),  # in the second epoch
    Moment("trainer.training_state.save_file", 5),  # a state is half there
    Moment("trainer.training_state.save_state", 2, after=True),
    Moment("pathlib.Path.rename", 2),  # a state, or a checkpoint, is whole but not in its place
    Moment("pathlib.Path.rename", 3, after=True),  # the one before is still there
    Moment("trainer.train._validate", 1),
    Moment("trainer.train._validate", 1, after=True),
]
# What is trained how; 5 divides neither an epoch's steps nor the steps that are killed.
KINDS: dict[str, list[object]] = {
    "adapter": ["--train", "adapter", "--method", "softtopk"],
    "whole encoder": ["--train", "full", "--method", "dexml", "--positives", 1],
    "mined negatives": ["--train", "full", "--method", "rae", "--mine-every", 5, "--mine-top", 4],
    "adapter, mined negatives": ["--method", "rae", "--mine-every", 5, "--mine-top", 4, "--validation-fraction", 0],
}
KILLED = -signal.SIGKILL


class TestKilled:
    """A process that is killed, and goes on."""

    @pytest.fixture
    def run(self, flags: list[object], tmp_path: Path) -> Callable[..., int]:
        """Runs `recollect train` in a process of its own that saves its state after every step."""

        def run(*more: object, killed: Moment | None = None) -> int:
            (status,) = run_recollect([*flags, "--save-minutes", 0, *more], tmp_path / "log", killed)
            return status

        return run

    @pytest.mark.parametrize("kind", KINDS)
    def test_again_and_again_it_ends_with_the_weights_and_keys_of_one_that_never_was(
        self, run: Callable[..., int], run_folder: Path, tmp_path: Path, kind: str
    ) -> None:
        assert run(*KINDS[kind], "--out", tmp_path / "never") == 0
        for moment in ON_THE_WAY:
            encodes = moment.function != "trainer.memory._write_progress" or "full" not in KINDS[kind]
            if encodes:  # a whole encoder has no frozen keys
                assert run(*KINDS[kind], "--resume", killed=moment) == KILLED, (moment, (tmp_path / "log").read_text())
        assert run(*KINDS[kind], "--resume") == 0, (tmp_path / "log").read_text()
        assert results(run_folder) == results(tmp_path / "never")
        scores = metrics(run_folder, "validation_ndcg_5")
        assert scores == metrics(tmp_path / "never", "validation_ndcg_5")
        assert {path.name for path in run_folder.iterdir()} == LEFT
        both = [training(folder)["progress"] | {"seconds": 0} for folder in (run_folder, tmp_path / "never")]
        assert both[0] == both[1]

    @pytest.mark.parametrize("resume", [["--resume"], []], ids=["resumed", "run again"])
    @pytest.mark.parametrize("what", ["adapter", "full"])
    @pytest.mark.parametrize(
        "moment",
        [
            Moment("trainer.run_folder.RunFolder.write_training", 2, after=True),  # the last state is still there
            Moment("trainer.memory.AdaptedKeys.keys", 2),
            Moment("trainer.run._remember", 1, after=True),
        ],
        ids=["before the memory", "in the memory", "after the memory"],
    )
    def test_at_the_end_it_needs_no_more_than_to_be_run_again(
        self, run: Callable[..., int], run_folder: Path, tmp_path: Path, moment: Moment, what: str, resume: list[str]
    ) -> None:
        few = ["--train", what, "--max-steps", 2]
        if what == "full" and "Adapted" in moment.function:
            moment = Moment("trainer.memory.EncodedTexts.keys", 2)
        assert run(*few, killed=moment) == KILLED, (tmp_path / "log").read_text()
        trained = (run_folder / "checkpoint" / "model.safetensors").stat().st_mtime_ns
        assert run(*few, *resume) == 0, (tmp_path / "log").read_text()
        assert {path.name for path in run_folder.iterdir()} == LEFT
        assert (run_folder / "checkpoint" / "model.safetensors").stat().st_mtime_ns == trained
        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        np.testing.assert_allclose(
            memory.instance_keys, encoder.encode(texts(run_folder, "instances.jsonl"), 16), atol=1e-5
        )

    def test_before_a_state_was_saved_it_begins_anew_without_being_asked(
        self, run: Callable[..., int], run_folder: Path, tmp_path: Path
    ) -> None:
        assert run("--max-steps", 2, "--out", tmp_path / "never") == 0
        assert run("--max-steps", 2, killed=Moment("trainer.train.save_state")) == KILLED
        assert run("--max-steps", 2) == 0
        assert results(run_folder) == results(tmp_path / "never")

    def test_unfinished_it_is_refused_without_resume_and_nothing_changes(
        self,
        run: Callable[..., int],
        train: Train,
        run_folder: Path,
        lesson: Path,
        tiny_distilbert: Any,
        tmp_path: Path,
    ) -> None:
        assert run(killed=Moment("trainer.objective.Objective.backward", 4)) == KILLED
        before = files(run_folder)
        outcome = train()
        assert outcome.status == 2
        assert "expected no unfinished training, found one; go on with --resume, or start again" in outcome.message
        for flags, differs in (
            (["--encoder", tiny_distilbert.folder], "encoder"),
            (["--method", "infonce"], "method, temperature, hard_negatives"),
            (["--train", "full"], "train, learning_rate"),
            (["--batch-size", 4], "steps, batch_size, mine_every"),
            (["--seed", 1], "seed"),
            (["--label-keys", "enriched"], "label_key_alpha"),
        ):
            outcome = train("--resume", *flags)
            assert outcome.status == 2
            assert f"{run_folder}: expected this training, found one that differs in {differs}; " in outcome.message
        assert "found training.json" not in outcome.err
        outcome = train("--epochs", 0, "--resume")
        assert outcome.status == 2
        assert "expected no training here, found one" in outcome.message
        assert files(run_folder) == before

    def test_the_dataset_it_is_resumed_with_must_be_the_same(
        self, run: Callable[..., int], train: Train, run_folder: Path, lesson: Path, tmp_path: Path
    ) -> None:
        dataset = Path(shutil.copytree(lesson, tmp_path / "dataset"))
        changed = (dataset / "train.jsonl").read_text("utf-8").replace("garden", "lawn")
        assert run(killed=Moment("trainer.objective.Objective.backward", 2)) == KILLED
        (dataset / "train.jsonl").write_text(changed, "utf-8")
        before = files(run_folder)
        log = tmp_path / "other log"
        words = ["train", dataset, "--out", run_folder, "--encoder", training(run_folder)["recipe"]["encoder"]["name"]]
        assert run_recollect([*words, *USUAL, "--resume"], log) == [2]
        assert "expected this training, found one that differs in dataset; go on with the same" in log.read_text()
        assert files(run_folder) == before

    def test_overwriting_starts_it_again(self, run: Callable[..., int], run_folder: Path, tmp_path: Path) -> None:
        assert run("--seed", 1, "--max-steps", 7, "--out", tmp_path / "never") == 0
        assert run(killed=Moment("trainer.objective.Objective.backward", 4)) == KILLED
        assert run("--seed", 1, "--max-steps", 7, "--overwrite") == 0
        assert results(run_folder) == results(tmp_path / "never")
        assert metrics(run_folder, "validation_ndcg_5") == metrics(tmp_path / "never", "validation_ndcg_5")

    def test_resuming_what_is_done_changes_nothing_and_what_is_not_there_begins(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "1 steps of 8" in train("--resume", "--max-steps", 1).err
        before = files(run_folder)
        monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("nothing should be encoded"))
        for resume in ([], ["--resume"]):
            outcome = train(*resume, "--max-steps", 1)
            assert outcome.status == 0
            assert "already done, 72 keys" in outcome.err
            assert files(run_folder) == before

    def test_a_memory_that_was_tuned_stays_as_it_is(self, train: Train, run_folder: Path) -> None:
        train("--max-steps", 1)
        assert recollect.main(["tune", str(run_folder), "--lambda", "0.3", "--label-key-alpha", "0.75"]) == 0
        before = files(run_folder)
        assert train("--max-steps", 1).status == 0
        assert files(run_folder) == before

    def test_from_outside_while_it_runs_it_goes_on_to_the_same_end(
        self, run: Callable[..., int], flags: list[object], run_folder: Path, tmp_path: Path
    ) -> None:
        assert run("--train", "full", "--out", tmp_path / "never") == 0
        command = [sys.executable, "-m", "recollect", *map(str, flags), "--train", "full", "--save-minutes", "0"]
        kill_after_steps(command, run_folder, 6)
        assert run("--train", "full", "--resume") == 0
        assert results(run_folder) == results(tmp_path / "never")


def kill_after_steps(command: list[str], folder: Path, step: int) -> None:
    """Start a training, and kill all its processes at once when its log has reached a step."""
    said, told = folder.with_name("killed.log"), folder / "metrics.jsonl"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with said.open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (told.exists() and f'"step": {step},' in told.read_text()):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.001)
    finally:
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def family(pid: int) -> list[int]:
    """A process and all that it started, and so on."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found = [pid]
    for member in found:  # grows as it is read
        found.extend(child for child, parent in parents.items() if parent == member)
    return found


class TestTwoRanks:
    FEW = ("--train", "full", "--method", "rae", "--mine-every", 5, "--learning-rate", 1e-3)

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("ranks")

    @pytest.fixture(scope="class")
    def two(self, folder: Path, lesson: Path, steady_encoder: Path) -> Path:
        """The run that two processes made, which nobody killed."""
        words = ["train", lesson, "--out", folder / "two", "--encoder", steady_encoder, *USUAL, *self.FEW]
        assert run_recollect(words, folder / "log", ranks=2) == [0, 0], (folder / "log").read_text()
        return folder / "two"

    def test_learn_what_one_learns(self, two: Path, folder: Path, lesson: Path, steady_encoder: Path) -> None:
        words = ["train", lesson, "--out", folder / "one", "--encoder", steady_encoder, *USUAL, *self.FEW]
        assert run_recollect(words, folder / "log") == [0]
        one, joined = (metrics(run, "validation_ndcg_5") for run in (folder / "one", two))
        assert joined == pytest.approx(one, abs=1e-6)
        assert {path.name for path in two.iterdir()} == LEFT
        np.testing.assert_allclose(
            open_memory(two / "memory").keys, open_memory(folder / "one" / "memory").keys, atol=1e-3
        )
        mine, other = weights(folder / "one"), weights(two)
        for name in mine:
            if not name.endswith("key.bias"):  # softmax does not see it: its gradient is rounding, and Adam enlarges it
                torch.testing.assert_close(other[name], mine[name], atol=2e-3, rtol=0)

    def test_killed_under_torchrun_go_on_to_the_same_weights(
        self, two: Path, folder: Path, lesson: Path, steady_encoder: Path
    ) -> None:
        words = ["train", lesson, "--out", folder / "killed", "--encoder", steady_encoder, *USUAL, *self.FEW]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        saving = [*words, "--save-minutes", 0]
        kill_after_steps([*torchrun, "-m", "recollect", *map(str, saving)], folder / "killed", 6)
        assert list((folder / "killed" / "state").glob("step-*"))
        assert run_recollect([*saving, "--resume"], folder / "log", ranks=2) == [0, 0], (folder / "log").read_text()
        assert results(folder / "killed") == results(two)

    def test_teach_an_adapter_with_dropout_and_go_on_after_a_kill(
        self, folder: Path, lesson: Path, tiny_bert: Any
    ) -> None:
        words = ["train", lesson, "--encoder", tiny_bert.folder, *USUAL, "--save-minutes", 0]
        for run, kills in (("never", []), ("again", [Moment("trainer.objective.Objective.backward", 9)])):
            out = ["--out", folder / f"adapter, {run}"]
            for moment in kills:
                assert run_recollect([*words, *out], folder / "log", moment, ranks=2) == [KILLED, KILLED]
            assert run_recollect([*words, *out, "--resume"], folder / "log", ranks=2) == [0, 0], (
                folder / "log"
            ).read_text()
        assert results(folder / "adapter, again") == results(folder / "adapter, never")


class TestDiverging:
    def test_loss_is_told_in_one_line_and_the_last_good_checkpoint_kept(
        self, train: Train, run_folder: Path, tiny_bert: Any
    ) -> None:
        outcome = train("--train", "full", "--learning-rate", 1e30)
        assert outcome.status == 2
        assert "expected a finite loss and gradient, found a loss of nan; the checkpoint of step 0 is kept in " in (
            outcome.message
        )
        assert outcome.message.endswith("start again with --overwrite and a --learning-rate below 1e+30")
        assert encoder_digest(load_checkpoint(run_folder / "checkpoint", "cpu")) == encoder_digest(
            load(tiny_bert.folder)
        )
        assert not (run_folder / "memory").exists()
        assert train("--train", "full", "--overwrite", "--epochs", 1).status == 0

    @pytest.mark.parametrize("what", ["adapter", "full"])
    @pytest.mark.parametrize("fraction", [0, 0.2], ids=["nothing held out", "some held out"])
    def test_last_step_leaves_no_broken_checkpoint_and_no_broken_memory(
        self, train: Train, run_folder: Path, what: str, fraction: float
    ) -> None:
        last = ["--max-steps", 1, "--validation-fraction", fraction]
        outcome = train("--train", what, "--learning-rate", 1e30, *last)
        assert all(weight.isfinite().all() and weight.abs().max() < 1e6 for weight in weights(run_folder).values())
        if fraction == 0:
            assert outcome.status == 2
            assert "--learning-rate below 1e+30" in outcome.message
            assert not (run_folder / "memory" / "memory.json").exists()
        else:
            assert np.isfinite(open_memory(run_folder / "memory").keys).all()

    def test_later_leaves_the_best_checkpoint_so_far(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backward = loop.Objective.backward
        scores: Iterator[float] = iter([1.0, 2.0])
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        losses: Iterator[float] = iter([0.5] * 8 + [math.inf])
        monkeypatch.setattr(
            loop.Objective, "backward", lambda self, batch: min(backward(self, batch), 9) * 0 + next(losses)
        )
        outcome = train()
        assert outcome.status == 2
        assert "step 9: expected a finite loss and gradient, found a loss of inf; the checkpoint of step 6 is kept" in (
            outcome.message
        )
        assert load_checkpoint(run_folder / "checkpoint", "cpu").model.adapter is not None


class TestFullDisk:
    @pytest.fixture
    def limit(self) -> Iterator[Callable[[int], None]]:
        """No file may grow beyond so many bytes."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def test_while_the_state_is_saved_keeps_the_last_one_and_training_goes_on_from_it(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[[int], None]
    ) -> None:
        train("--train", "full", "--out", run_folder.with_name("never"))
        save_state, saved = loop.save_state, []

        def fill_up(folder: Path, progress: Any, *arguments: Any) -> None:
            if progress.step == 8:
                limit(
                    (run_folder / "checkpoint" / "model.safetensors").stat().st_size + 1_000
                )  # the moments are larger
            save_state(folder, progress, *arguments)
            saved.append(progress.step)

        with monkeypatch.context() as full:
            full.setattr(loop, "save_state", fill_up)
            outcome = train("--train", "full", "--save-minutes", 0)
        limit(resource.RLIM_INFINITY)
        assert outcome.status == 2
        assert f"{run_folder}/state: the training's state cannot be saved (" in outcome.message
        assert "make room and go on with --resume" in outcome.message
        assert saved[-1] == 7
        assert [path.name for path in (run_folder / "state").iterdir()] == ["step-00000007"]
        assert load_checkpoint(run_folder / "checkpoint", "cpu").dim == 32
        assert train("--train", "full", "--resume").status == 0
        assert results(run_folder) == results(run_folder.with_name("never"))

    @pytest.mark.parametrize("what", ["adapter", "full"])
    @pytest.mark.parametrize("size", [100, 20_000], ids=["first file", "weights"])
    def test_while_a_checkpoint_is_saved_keeps_the_last_good_one(
        self,
        train: Train,
        run_folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        limit: Callable[[int], None],
        what: str,
        size: int,
    ) -> None:
        save_checkpoint, before = walk.save_checkpoint, []
        scores: Iterator[float] = iter([1.0, 2.0])

        def fill_up(*arguments: Any) -> None:
            if (run_folder / "checkpoint").is_dir():
                before.append(files(run_folder / "checkpoint"))
                limit(size)
            save_checkpoint(*arguments)

        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        monkeypatch.setattr(walk, "save_checkpoint", fill_up)
        outcome = train("--train", what)
        limit(resource.RLIM_INFINITY)
        assert outcome.status == 2
        assert str(run_folder) in outcome.message
        assert before == [files(run_folder / "checkpoint")]
        assert {path.name for path in run_folder.iterdir()} - {"frozen"} == LEFT - {"memory"}
        assert load_checkpoint(run_folder / "checkpoint", "cpu").dim == 32

    def test_while_a_tokenizer_is_saved_is_told_in_one_line(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from transformers import PreTrainedTokenizerFast

        def fail(self: Any, folder: Path) -> None:
            self.backend_tokenizer.save("/dev/full")  # as tokenizers says it: by no OSError

        monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
        outcome = train()
        assert outcome.status == 2
        assert "No space left on device" in outcome.message
        assert not (run_folder / "checkpoint").exists()

    def test_while_the_memory_is_written_is_mended_by_running_again(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[[int], None]
    ) -> None:
        train("--out", run_folder.with_name("never"))
        remember = walk._remember

        def fill_up(*arguments: Any) -> None:
            limit(4_000)
            remember(*arguments)

        with monkeypatch.context() as full:
            full.setattr(walk, "_remember", fill_up)
            outcome = train()
        limit(resource.RLIM_INFINITY)
        assert outcome.status == 2
        assert str(run_folder) in outcome.message
        assert train().status == 0
        assert results(run_folder) == results(run_folder.with_name("never"))
        assert {path.name for path in run_folder.iterdir()} == LEFT


BAD_FLAGS: dict[str, tuple[list[object], str]] = {
    "method": (["--method", "svm"], "--method: expected 'rae', 'dexml', 'softtopk' or 'infonce'; found 'svm'"),
    "unknown flag": (["--learning-rat", 1], "unrecognized arguments: --learning-rat 1; see `recollect train --help`"),
    "what to train": (["--train", "head"], "--train: expected 'adapter' or 'full'; found 'head'"),
    "learning rate": (["--learning-rate", 0], "--learning-rate: expected greater than 0; found '0'"),
    "learning rate no number": (["--learning-rate", "nan"], "--learning-rate: expected a finite number; found 'nan'"),
    "temperature": (["--temperature", -1], "--temperature: expected greater than 0; found '-1'"),
    "batch size": (["--batch-size", 0], "--batch-size: expected greater than or equal to 1; found '0'"),
    "large batch": (["--batch-size", 49], "--batch-size 49: expected at most 48, the instances to train on; choose a"),
    "fraction": (["--validation-fraction", 0.6], "--validation-fraction: expected less than or equal to 0.5"),
    "mine top": (["--mine-top", 0], "--mine-top: expected greater than or equal to 1; found '0'"),
    "search": (["--mine-search", "fast"], "--mine-search: expected 'exact' or 'approximate'; found 'fast'"),
    "precision": (["--precision", "fp8"], "--precision: expected 'auto', 'fp32' or 'bf16'; found 'fp8'"),
    "steps": (["--max-steps", -1], "--max-steps: expected greater than or equal to 0; found '-1'"),
    "minutes": (["--save-minutes", "soon"], "--save-minutes: expected a valid number"),
    "seed": (["--seed", -1], "--seed: expected greater than or equal to 0; found '-1'"),
}


@pytest.mark.parametrize(("more", "complaint"), BAD_FLAGS.values(), ids=BAD_FLAGS)
def test_bad_flag_is_told_in_one_line_and_writes_nothing(
    train: Train, run_folder: Path, more: list[object], complaint: str
) -> None:
    outcome = train(*more)
    assert (outcome.status, outcome.out) == (2, "")
    assert complaint in outcome.message
    assert not run_folder.exists()


BAD_DATA: dict[str, tuple[str, str, str]] = {
    "one label": (
        '{"text": "red"}\n',
        '{"text": "red", "labels": [0]}\n' * 3,
        "found 1 label; there is nothing to tell",
    ),
    "no label in use": (
        '{"text": "red"}\n{"text": "fox"}\n',
        '{"text": "a", "labels": []}\n',
        "found no instance with",
    ),
    "no labels at all": ("", '{"text": "red", "labels": []}\n', "labels.jsonl"),
    "labels without text": ('{"uid": "a"}\n', '{"text": "red", "labels": []}\n', "labels.jsonl:1"),
    "labels with empty text": ('{"text": " "}\n', '{"text": "red", "labels": []}\n', "labels.jsonl:1"),
    "nothing to train on": ('{"text": "red"}\n{"text": "fox"}\n', "", "train.jsonl"),
}


@pytest.mark.parametrize(("labels", "instances", "complaint"), BAD_DATA.values(), ids=BAD_DATA)
def test_data_that_teaches_nothing_is_told_in_one_line_and_writes_nothing(
    run_folder: Path,
    tiny_bert: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    labels: str,
    instances: str,
    complaint: str,
) -> None:
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "labels.jsonl").write_text(labels)
    (dataset / "train.jsonl").write_text(instances)
    words = ["train", dataset, "--out", run_folder, "--encoder", tiny_bert.folder, "--max-length", 16]
    outcome = Outcome(recollect.main([*map(str, words), "--label-max-length", "8"]), *capfd.readouterr())
    assert (outcome.status, outcome.out) == (2, "")
    assert complaint in outcome.message
    assert str(dataset) in outcome.message
    assert not run_folder.exists()


def test_gpu_that_is_not_there_is_refused(train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = train("--device", "cuda")
    assert outcome.status == 2
    assert "--device cuda: expected a CUDA GPU, found none; use --device cpu" in outcome.message
    assert not run_folder.exists()


def test_state_that_cannot_be_read_is_refused_until_overwritten(
    train: Train, flags: list[object], run_folder: Path, tmp_path: Path
) -> None:
    killed = Moment("trainer.objective.Objective.backward", 3)
    assert run_recollect([*flags, "--save-minutes", 0], tmp_path / "log", killed) == [KILLED]
    (state,) = (run_folder / "state").iterdir()
    (state / "optimizer.safetensors").write_bytes(b"half")
    outcome = train("--resume")
    assert outcome.status == 2
    assert f"{state}: expected a training's state, found: " in outcome.message
    assert load_checkpoint(run_folder / "checkpoint", "cpu").dim == 32
    assert train("--overwrite", "--max-steps", 1).status == 0


def test_two_instances_of_two_labels_are_enough(tmp_path: Path, tiny_bert: Any, run_folder: Path) -> None:
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "labels.jsonl").write_text('{"text": "red"}\n{"text": "fox"}\n')
    (dataset / "train.jsonl").write_text('{"text": "red paint", "labels": [0]}\n{"text": "lazy fox", "labels": [1]}\n')
    words = ["train", dataset, "--out", run_folder, "--encoder", tiny_bert.folder, "--max-length", 16]
    for what in ("adapter", "full"):
        more = ["--label-max-length", "8", "--train", what, "--epochs", "2", "--overwrite"]
        assert recollect.main([*map(str, words), *more]) == 0
        assert np.isfinite(open_memory(run_folder / "memory").keys).all()


class TestOptimizer:
    def test_matrices_decay_and_norms_and_biases_do_not(self, tiny_bert: Any) -> None:
        model = load(tiny_bert.folder).model
        groups = loop._optimizer(model.learning()).param_groups
        decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
        found = {name: decay.get(id(weight)) for name, weight in model.named_parameters()}
        for name, rate in found.items():
            plain = name.endswith("bias") or "LayerNorm" in name
            assert rate == (None if ".pooler." in name else 0 if plain else 0.01), name
        assert set(found.values()) == {None, 0, 0.01}

    def test_every_group_takes_the_same_rate_and_a_steep_gradient_is_clipped(self) -> None:
        model = torch.nn.Linear(3, 2)
        learner = loop.Learner(model, loop._optimizer(model), negatives=None, device="cpu")
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 100.0)
        assert loop._descend(learner, 0.25) == pytest.approx(100 * math.sqrt(8))
        assert [group["lr"] for group in learner.optimizer.param_groups] == [0.25, 0.25]
        assert all(weight.grad is None for weight in model.parameters())
        moments = [state["exp_avg"] for state in learner.optimizer.state.values()]
        length = math.sqrt(sum(float((moment / 0.1).square().sum()) for moment in moments))
        assert length == pytest.approx(1, rel=1e-4)

    def test_a_frozen_weight_is_left_alone(self) -> None:
        model = torch.nn.Linear(3, 2)
        model.bias.requires_grad_(False)
        (matrices, others) = loop._optimizer(model).param_groups
        assert ([len(matrices["params"]), len(others["params"])], others["weight_decay"]) == ([1, 0], 0)


def test_a_large_batch_goes_through_the_gradient_cache_and_a_small_one_does_not(train: Train, monkeypatch: Any) -> None:
    made = []
    embedder = loop._embedder

    def watched(*arguments: Any) -> Any:
        made.append(embedder(*arguments))
        return made[-1]

    monkeypatch.setattr(loop, "_embedder", watched)
    train("--max-steps", 1)
    train("--max-steps", 1, "--micro-batch", 5, "--overwrite")
    monkeypatch.setattr(loop, "_KEPT_TOKENS", {"cpu": 10})
    train("--max-steps", 1, "--overwrite")
    assert [each.cache for each in made] == [False, True, True]
    assert [each.micro_rows for each in made] == [2**31, 5, 2**31]


def test_help_explains_every_flag_with_its_values_or_its_unit(capfd: pytest.CaptureFixture[str]) -> None:
    from trainer.settings import TrainSettings

    with pytest.raises(SystemExit):
        recollect.main(["train", "--help"])
    out = " ".join(capfd.readouterr().out.split())
    for name, field in TrainSettings.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description
        assert len(field.description) <= 120, name
        assert " ".join(field.description.split())[:40] in out, name
        assert name == "dataset" or f"--{name.replace('_', '-')}" in out
