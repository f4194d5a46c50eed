"""`recollect train` has the same result if it is killed at any moment, or if several processes share the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recollect
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.memory.memory import open_memory
from tests.trainer.helpers import files
from tests.trainer.runs import (
    KILLED,
    LEFT,
    USUAL,
    Moment,
    Train,
    metrics,
    results,
    run_recollect,
    texts,
    training,
    weights,
)

# Moments at which a training with 6 steps an epoch is killed. Its state is saved after every step.
ON_THE_WAY = [
    Moment("recollect.trainer.memory.memory_writer._write_progress", 2),  # some frozen keys are written
    Moment("recollect.trainer.training.train.save_state", 1),  # only the first checkpoint is saved
    Moment("recollect.trainer.training.objective.Objective.backward", 8),  # in the second epoch
    Moment("recollect.trainer.training.training_state.save_file", 5),  # a state is half written
    Moment("recollect.trainer.training.train.save_state", 2, after=True),
    Moment("pathlib.Path.rename", 2),  # a state or a checkpoint is complete but not in its place
    Moment("pathlib.Path.rename", 3, after=True),  # the previous state still exists
    Moment("recollect.trainer.training.train._validate", 1),
    Moment("recollect.trainer.training.train._validate", 1, after=True),
]
# Flags for each kind of training. 5 divides neither the number of steps of an epoch nor the steps at which tests kill
# the training.
KINDS: dict[str, list[object]] = {
    "adapter, classifier": ["--method", "unidec", "--mine-top", 8, "--cluster-from", 1, "--max-seconds", 3_600],
    "mined negatives": ["--train", "full", "--method", "rae", "--mine-every", 5, "--mine-top", 4],
    "prototypes": ["--train", "full", "--method", "prime", "--cluster-from", 0, "--tune", "no"],
    "low-rank matrices, bfloat16": ["--train", "full", "--method", "dexml", "--lora", 2, "--precision", "bf16"],
}
# Each kind has a third of the moments. The first moment is in the first kind, because only frozen encoders have it.
SEVERAL_TIMES = [pytest.param(kind, ON_THE_WAY[number::3], id=kind) for number, kind in enumerate(KINDS)]


class TestKilled:
    """A training process that is killed and resumed."""

    @pytest.fixture
    def run(self, flags: list[object], tmp_path: Path) -> Callable[..., int]:
        """Run `recollect train` in a new process that saves its state after every step."""

        def run(*more: object, killed: Moment | None = None) -> int:
            (status,) = run_recollect([*flags, "--save-minutes", 0, *more], tmp_path / "log", killed)
            return status

        return run

    @pytest.mark.parametrize(("kind", "moments"), SEVERAL_TIMES)
    def test_training_killed_several_times_has_the_weights_and_keys_of_an_uninterrupted_training(
        self, run: Callable[..., int], run_folder: Path, tmp_path: Path, kind: str, moments: list[Moment]
    ) -> None:
        assert run(*KINDS[kind], "--out", tmp_path / "never") == 0
        for moment in moments:
            assert run(*KINDS[kind], "--resume", killed=moment) == KILLED, (moment, (tmp_path / "log").read_text())
        assert run(*KINDS[kind], "--resume") == 0, (tmp_path / "log").read_text()
        assert results(run_folder) == results(tmp_path / "never")
        scores = metrics(run_folder, "validation_ndcg_5")
        assert scores == metrics(tmp_path / "never", "validation_ndcg_5")
        what = "full" if "full" in KINDS[kind] else "adapter"
        assert {path.name for path in run_folder.iterdir()} == LEFT[what]
        both = [training(folder)["progress"] | {"seconds": 0} for folder in (run_folder, tmp_path / "never")]
        assert both[0] == both[1]

    @pytest.mark.parametrize(
        ("what", "resume", "moment"),
        [
            ("adapter", [], Moment("recollect.trainer.memory.key_sources.AdaptedKeys.keys", 2)),
            # The last state still exists.
            ("full", ["--resume"], Moment("recollect.trainer.run_folder.RunFolder.write_training", 2, after=True)),
        ],
        ids=["adapter, in the memory, run again", "full, before the memory, resumed"],
    )
    def test_training_killed_at_its_end_finishes_when_it_is_run_again(
        self, run: Callable[..., int], run_folder: Path, tmp_path: Path, moment: Moment, what: str, resume: list[str]
    ) -> None:
        few = ["--train", what, "--max-steps", 2]
        assert run(*few, killed=moment) == KILLED, (tmp_path / "log").read_text()
        trained = (run_folder / "checkpoint" / "model.safetensors").stat().st_mtime_ns
        assert run(*few, *resume) == 0, (tmp_path / "log").read_text()
        assert {path.name for path in run_folder.iterdir()} == LEFT[what]
        assert (run_folder / "checkpoint" / "model.safetensors").stat().st_mtime_ns == trained
        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        np.testing.assert_allclose(
            memory.instance_keys, encoder.encode(texts(run_folder, "instances.jsonl"), 16), atol=1e-5
        )

    @pytest.mark.parametrize("verb", ["train", "tune"])
    def test_tuning_killed_between_its_two_files_is_done_again_by_the_same_command(
        self, flags: list[object], train: Train, run_folder: Path, tmp_path: Path, verb: str
    ) -> None:
        def tuned(run: Path) -> list[bytes]:
            return [(run / "memory" / name).read_bytes() for name in ("tuning.json", "memory.json")]

        few, never = ["--max-steps", 2, "--tune", "yes" if verb == "train" else "no"], tmp_path / "never"
        commands = [[*flags, *few]] + [["tune", run_folder]] * (verb == "tune")
        for command in commands:
            assert recollect.main([str(never if each == run_folder else each) for each in command]) == 0
        moment = Moment("recollect.trainer.memory.tune.write_defaults")
        statuses = [run_recollect(command, tmp_path / "log", moment) for command in commands]
        assert statuses[-1] == [KILLED], (tmp_path / "log").read_text()
        assert tuned(run_folder)[1] != tuned(never)[1]
        assert recollect.main(list(map(str, commands[-1]))) == 0
        assert tuned(run_folder) == tuned(never)
        before = files(run_folder / "memory")
        assert train(*few).status == 0
        assert files(run_folder / "memory") == before

    def test_unfinished_training_is_refused_without_resume_and_stays_unchanged(
        self,
        run: Callable[..., int],
        train: Train,
        run_folder: Path,
        lesson: Path,
        tiny_distilbert: Any,
        tmp_path: Path,
    ) -> None:
        assert run(killed=Moment("recollect.trainer.training.objective.Objective.backward", 4)) == KILLED
        before = files(run_folder)
        outcome = train()
        assert outcome.status == 2
        assert "expected no unfinished training, found one; continue with --resume, or start again" in outcome.message
        for flags, differs in (
            (["--encoder", tiny_distilbert.folder], "encoder"),
            (["--batch-size", 4], "steps, batch_size, mine_every"),
        ):
            outcome = train("--resume", *flags)
            assert outcome.status == 2
            assert f"{run_folder}: expected this training, found one that differs in {differs}" in outcome.message
        outcome = train("--epochs", 0, "--resume")
        assert outcome.status == 2
        assert "expected no training here, found one" in outcome.message
        assert files(run_folder) == before

    def test_damaged_vectors_of_the_frozen_encoder_are_computed_again(
        self, run: Callable[..., int], run_folder: Path, tmp_path: Path
    ) -> None:
        assert run("--max-steps", 3, "--out", tmp_path / "never") == 0
        assert (
            run("--max-steps", 3, killed=Moment("recollect.trainer.training.objective.Objective.backward", 3)) == KILLED
        )
        keys = run_folder / "frozen" / "keys.npy"
        keys.write_bytes(keys.read_bytes()[:-1])
        assert run("--max-steps", 3, "--resume") == 0, (tmp_path / "log").read_text()
        assert results(run_folder) == results(tmp_path / "never")

    def test_resume_changes_nothing_in_a_finished_run_and_starts_an_absent_run(
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

    def test_running_recollect_train_again_keeps_a_tuned_memory_unchanged(self, train: Train, run_folder: Path) -> None:
        train("--max-steps", 1)
        assert recollect.main(["tune", str(run_folder), "--lambda", "0.3", "--label-key-alpha", "0.75"]) == 0
        before = files(run_folder)
        assert train("--max-steps", 1).status == 0
        assert files(run_folder) == before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.mark.parametrize(
    "method",
    [["rae", "--train", "full", "--mine-every", 5], ["ova", "--train", "head", "--classifier-keys", "joined"]],
    ids=lambda m: m[0],
)
def test_training_with_two_ranks_gives_the_weights_of_one_process(
    folder: Path, lesson: Path, steady_encoder: Path, method: list[object]
) -> None:
    words = ["train", lesson, "--encoder", steady_encoder, *USUAL, "--method", *method]
    runs = [folder / f"{method[0]} {ranks}" for ranks in (1, 2)]
    for ranks, run in enumerate(runs, start=1):
        statuses = run_recollect([*words, "--learning-rate", 1e-3, "--out", run], folder / "log", ranks=ranks)
        assert statuses == [0] * ranks, (folder / "log").read_text()
    assert_same(*runs)


def assert_same(one: Path, two: Path) -> None:
    """Check that two processes learned the same as one, up to rounding."""
    first, second = (metrics(run, "validation_ndcg_5") for run in (one, two))
    assert second == pytest.approx(first, abs=1e-6)
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    np.testing.assert_allclose(open_memory(two / "memory").keys, open_memory(one / "memory").keys, atol=1e-3)
    mine, other = weights(one), weights(two)
    for name in mine:
        # Softmax ignores this bias: its gradient is a rounding error, which Adam enlarges.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(other[name], mine[name], atol=2e-3, rtol=0)


# With ova, each rank stores its share of the labels' vectors and their moments.
@pytest.mark.parametrize(
    "method",
    [
        ["prime", "--hard-negatives", 2, "--cluster-from", 0, "--positives", 2, "--tune", "no"],
        ["ova", "--train", "head", "--hard-negatives", 3],
    ],
    ids=lambda method: method[0],
)
def test_two_ranks_resume_after_a_kill_with_the_same_result(
    folder: Path, lesson: Path, tiny_bert: Any, method: list[object]
) -> None:
    words = ["train", lesson, "--encoder", tiny_bert.folder, *USUAL, "--save-minutes", 0, "--method", *method]
    names = [f"{method[0]} never", f"{method[0]} again"]
    never, again = ([*words, "--resume", "--out", folder / name] for name in names)
    log = folder / "log"
    assert run_recollect(never, log, ranks=2) == [0, 0], log.read_text()
    moment = Moment("recollect.trainer.training.objective.Objective.backward", 9)
    first, second = run_recollect(again, log, moment, ranks=2)
    assert first == KILLED
    assert second != 0  # also killed, or failed without the other process
    assert run_recollect(again, folder / "alone") == [2]
    assert "found one that differs in ranks; continue with the same settings" in (folder / "alone").read_text()
    assert run_recollect(again, log, ranks=2) == [0, 0], log.read_text()
    assert results(folder / names[1]) == results(folder / names[0])
