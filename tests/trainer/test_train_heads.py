"""`recollect train` by methods with a head: prototypes and a classifier."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import recollect
from recollect.trainer.encoding.checkpoint import load_checkpoint, load_encoder
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.errors import EncoderError
from recollect.trainer.held_out import ALL, HeldOutTexts
from recollect.trainer.memory import memory_writer
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.training import memory_check, run_log
from recollect.trainer.training import train as loop
from recollect.trainer.training.validation import Validation
from tests.trainer.helpers import Clock, files
from tests.trainer.runs import USUAL, Outcome, Train, metrics, texts, training, weights

INSTANCES, LABELS, DIM = 60, 12, 32


class HeadRun(NamedTuple):
    """A finished run, its method, and its value of --train."""

    folder: Path
    method: str
    what: str


@pytest.fixture(scope="module", params=[("prime", "full"), ("unidec", "adapter")], ids=" ".join)
def run(
    request: pytest.FixtureRequest, lesson: Path, tiny_bert: Any, tmp_path_factory: pytest.TempPathFactory
) -> HeadRun:
    """A training of four epochs, with --label-inputs text. Tests must not change its folder."""
    method, what = request.param
    folder = tmp_path_factory.mktemp(f"{method}-{what}") / "run"
    words = ["train", lesson, "--out", folder, "--encoder", tiny_bert.folder, "--max-length", 16]
    words += ["--label-max-length", 8, "--batch-size", 8, "--epochs", 4, "--validation-fraction", 0.2]
    words += [
        "--tune",
        "no",
        "--train",
        what,
        "--method",
        method,
        *(["--label-inputs", "text"] if what == "adapter" else []),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_writer, "_CHUNK_TEXTS", 5)  # label positions must be right in every chunk
        assert recollect.main([*map(str, words)]) == 0
    return HeadRun(folder, method, what)


class TestRun:
    def test_memory_of_a_training_with_a_head_has_the_keys_that_the_checkpoint_gives(self, run: HeadRun) -> None:
        folder = run.folder
        encoder, memory = load_checkpoint(folder / "checkpoint", "cpu"), open_memory(folder / "memory")
        dim = 2 * DIM if run.method == "unidec" else DIM
        assert memory.keys.shape == (INSTANCES + LABELS, dim)
        np.testing.assert_allclose(np.linalg.norm(memory.keys, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(
            memory.instance_keys, encoder.encode(texts(folder, "instances.jsonl"), 16), atol=1e-5
        )
        names = texts(folder, "labels.jsonl")
        for first, last in ((0, 12), (0, 5), (5, 12)):
            found = encoder.encode(names[first:last], 8, side="labels", first=first)
            np.testing.assert_allclose(memory.keys[INSTANCES + first : INSTANCES + last], found, atol=1e-5)
        moved = encoder.encode(names, 8, side="labels", first=0)[::-1]
        assert not np.allclose(memory.keys[INSTANCES:], moved, atol=1e-2)

    def test_memory_without_training_has_the_keys_of_the_run_whose_checkpoint_it_starts_from(
        self, run: HeadRun, lesson: Path, run_folder: Path
    ) -> None:
        recollect.train(lesson, out=run_folder, from_=run.folder, epochs=0)
        earlier, memory = open_memory(run.folder / "memory"), open_memory(run_folder / "memory")
        assert memory.plan == dataclasses.replace(earlier.plan, encoder=memory.plan.encoder)
        np.testing.assert_allclose(memory.keys, earlier.keys, atol=1e-5)

    def test_head_is_not_used_for_other_labels_and_a_line_says_so(
        self, run: HeadRun, train: Train, run_folder: Path, lesson: Path, tmp_path: Path
    ) -> None:
        other = Path(shutil.copytree(lesson, tmp_path / "other"))
        labels = (lesson / "labels.jsonl").read_text("utf-8")
        (other / "labels.jsonl").write_text(labels.replace('"quick', '"slow'), "utf-8")
        start = run.folder / "checkpoint"
        outcome = train("--encoder", start, "--epochs", 0, dataset=other)
        assert outcome.status == 0, outcome.err
        assert f"{start}: its head (" in outcome.err
        assert "is not used: it belongs to other labels than those of" in outcome.err
        encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
        assert encoder.model.head is None
        assert (encoder.model.adapter is not None) == (run.what == "adapter")
        assert memory.plan.dim == encoder.dim == DIM
        names = texts(run_folder, "labels.jsonl")
        found = load_encoder(str(start), "auto", 16, 8, "cpu").encode(names, 8, side="labels")
        np.testing.assert_allclose(memory.keys[INSTANCES:], found, atol=1e-5)
        assert not list((run_folder / "checkpoint").glob("head*"))


@pytest.mark.parametrize(("method", "what"), [("prime", "adapter"), ("unidec", "full")])
def test_held_out_instances_do_not_influence_the_head(
    train: Train,
    run_folder: Path,
    lesson: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    what: str,
) -> None:
    other = Path(shutil.copytree(lesson, tmp_path / "other"))
    rows = [json.loads(line) for line in (lesson / "train.jsonl").read_text("utf-8").splitlines()]
    labelled = np.array([bool(row["labels"]) for row in rows])
    held_out = HeldOutTexts.choose([row["text"] for row in rows], labelled, 0.2, 0, ALL)
    mask = held_out.mask([row["text"] for row in rows], len(rows))
    assert (mask & labelled).sum() == 12
    for row in np.flatnonzero(mask):
        # Another text that is held out: the same texts stay in training, and none of them changes.
        rows[row]["text"] = next(text for text in (f"over {n}" for n in range(999)) if held_out.mask([text], 1)[0])
    (other / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = itertools.count(1.0)
    monkeypatch.setattr(Validation, "score", lambda *_: next(scores))  # every checkpoint counts as the best so far
    for dataset, run in ((lesson, run_folder), (other, tmp_path / "second")):
        more = ["--method", method, "--train", what, "--tune", "no", "--epochs", 2]
        assert train(*more, "--out", run, dataset=dataset).status == 0
    first, second = weights(run_folder), weights(tmp_path / "second")
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_max_seconds_ends_a_training_with_a_falling_rate_and_a_complete_memory(
    train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, backward = Clock(), loop.Objective.backward

    def tick(self: Any, batch: Any) -> float:
        clock.now += 1
        return backward(self, batch)

    monkeypatch.setattr(run_log, "_SECONDS_BETWEEN_LINES", 0)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop.Objective, "backward", tick)
    more = ["--method", "prime", "--tune", "no", "--max-seconds", 10, "--epochs", 1_000, "--learning-rate", 1e-3]
    assert train(*more).status == 0
    saved = training(run_folder)
    assert (saved["done"], saved["progress"]["step"], saved["measured"]["seconds"]) == (True, 10, 10)
    assert saved["recipe"]["steps"] == 6_000
    rates = list(metrics(run_folder, "learning_rate").values())
    assert rates[1] == max(rates) == pytest.approx(1e-3, rel=1e-2)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] == pytest.approx(1e-3 / 9, rel=1e-2)
    assert list(metrics(run_folder, "validation_ndcg_5")) == [0, 6, 10]
    assert open_memory(run_folder / "memory").plan.instances == INSTANCES
    assert "already done" in train(*more).err


@pytest.mark.parametrize(
    "more",
    [
        ["prime", "--train", "full", "--prototype", "text,centroid", "--margin", "0.2,0.2", "--no-symmetric"],
        ["prime", "--label-inputs", "text", "--triplet-negatives", 3, "--no-text-loss", "--bank", 12],
        ["ngame", "--train", "head", "--margin", "0.2,0.2", "--embedding-dropout", 0.5],
        ["unidec", "--train", "full", "--no-classifier-norm", "--embedding-dropout", 0.1, "--projection", 24],
        ["unidec", "--label-inputs", "text", "--clusters", 47],
        ["supcon", "--train", "full", "--projection", 24],
    ],
    ids=lambda more: " ".join(map(str, more)),
)
def test_label_without_instances_has_a_key_near_its_text_and_is_found_by_it(
    train: Train, run_folder: Path, lesson: Path, tmp_path: Path, more: list[object]
) -> None:
    dataset = Path(shutil.copytree(lesson, tmp_path / "dataset"))
    with (dataset / "labels.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"uid": "never", "text": "lawn over chair"}\n')
    assert train("--tune", "no", "--method", *more, dataset=dataset).status == 0
    encoder, memory = load_checkpoint(run_folder / "checkpoint", "cpu"), open_memory(run_folder / "memory")
    key = memory.keys[-1]
    assert np.isfinite(key).all()
    assert math.isclose(np.linalg.norm(key), 1, abs_tol=1e-5)
    (query,) = encoder.encode(["lawn over chair"], 16)
    similarities = memory.keys[INSTANCES:] @ query
    assert similarities.argmax() == LABELS


class TestRefused:
    """Trainings that must be refused before the run folder changes."""

    @pytest.fixture
    def refused_training(self, train: Train, run_folder: Path) -> Callable[..., Outcome]:
        """Run a training that must be refused. The contents of the run folder must stay unchanged."""
        run_folder.mkdir()
        (run_folder / "metrics.jsonl").write_text("of another run")

        def refused(*more: object) -> Outcome:
            before = files(run_folder)
            outcome = train(*more, "--overwrite")
            assert (outcome.status, outcome.out) == (2, "")
            assert files(run_folder) == before
            return outcome

        return refused

    def test_head_that_does_not_fit_into_memory_is_refused(
        self, refused_training: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A projection with its bias, and a vector for each label, six times in float32.
        needed = (DIM * DIM + DIM + LABELS * DIM) * 4 * 6
        monkeypatch.setattr(memory_check, "free_bytes", lambda: needed - 1)
        monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("nothing should be encoded"))
        monkeypatch.setattr(Encoder, "tokenise", lambda *_: pytest.fail("nothing should be tokenised"))
        message = refused_training("--method", "unidec").message
        assert (
            "--method unidec: 12 labels of 32 dimensions: expected 0.0 MB of free memory for weights, gradients and"
            in message
        )


class TestTunedAtOnce:
    def test_memory_of_prime_is_tuned_by_default_and_that_of_other_methods_only_with_tune_yes(
        self, train: Train, run_folder: Path, tmp_path: Path
    ) -> None:
        assert "tune: lambda " in train("--method", "prime", "--max-steps", 1).err
        saved = json.loads((run_folder / "memory" / "tuning.json").read_text())
        assert saved["queries"] == 12
        assert open_memory(run_folder / "memory").defaults["lambda"] == saved["best"]["lambda"]
        tuned = ["--max-steps", 1, "--tune", "yes", "--out", tmp_path / "rae"]
        assert "tune: lambda " in train(*tuned).err
        assert "tune: lambda " not in train("--max-steps", 1, "--out", tmp_path / "usual").err

    def test_after_an_interruption_of_tuning_the_next_call_tunes_the_memory_once(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("recollect.trainer.run.tune", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            assert train("--method", "prime", "--max-steps", 1).status == 130
        assert not (run_folder / "memory" / "tuning.json").exists()
        assert "tune: lambda " in train("--method", "prime", "--max-steps", 1).err
        assert "tune: lambda " not in train("--method", "prime", "--max-steps", 1).err


@pytest.fixture(scope="module")
def trained(lesson: Path, tiny_bert: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a head of prime. Tests must not change it."""
    folder = tmp_path_factory.mktemp("prime") / "run"
    words = ["train", lesson, "--out", folder, "--encoder", tiny_bert.folder, *USUAL, "--tune", "no"]
    assert recollect.main([*map(str, words), "--method", "prime", "--max-steps", "1"]) == 0
    return folder


class TestDamagedHead:
    @pytest.fixture
    def damaged(self, trained: Path, run_folder: Path) -> Path:
        """A copy of the run folder that a test damages."""
        return Path(shutil.copytree(trained, run_folder))

    @pytest.mark.parametrize("damage", ["missing", "half", "another shape"])
    def test_damaged_weights_of_a_head_are_refused_and_the_error_names_their_file(
        self, damaged: Path, damage: str
    ) -> None:
        path = damaged / "checkpoint" / "head.safetensors"
        weights, whole = load_file(path), path.read_bytes()
        path.unlink()
        if damage == "half":
            path.write_bytes(whole[: len(whole) // 2])
        elif damage == "another shape":
            save_file(weights | {"free": weights["free"][:, 1:].contiguous()}, path)
        with pytest.raises(EncoderError, match=f"^{path}: expected weights of the shapes in recollect.json, found: "):
            load_checkpoint(damaged / "checkpoint", "cpu")

    def test_damaged_description_of_a_head_is_refused_and_the_error_names_its_file(self, damaged: Path) -> None:
        path = damaged / "checkpoint" / "recollect.json"
        saved = json.loads(path.read_text())
        path.write_text(json.dumps(saved | {"head": saved["head"] | {"kind": "oracle"}}))
        with pytest.raises(EncoderError, match=f"^{path}: expected the description of a head, found: "):
            load_checkpoint(damaged / "checkpoint", "cpu")
