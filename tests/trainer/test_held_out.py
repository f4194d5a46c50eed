"""Held-out texts: the rule that chooses them, and that a text from which a run has learnt never judges it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recollect
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.errors import EncoderError
from recollect.trainer.held_out import ALL, HeldOutTexts
from recollect.trainer.memory.left_out import choose_queries
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.static import query_encoder
from tests.trainer.runs import Train, training

few = settings(max_examples=40, deadline=None)


def choose(texts: list[str], fraction: float | None, seed: int = 0, earlier: HeldOutTexts = ALL) -> HeldOutTexts:
    return HeldOutTexts.choose(texts, np.ones(len(texts), dtype=bool), fraction, seed, earlier)


def members(held_out: HeldOutTexts, texts: list[str]) -> set[str]:
    return {text for text, held in zip(texts, held_out.mask(texts, len(texts)), strict=True) if held}


def numbered(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


class TestRule:
    @few
    @given(
        texts=st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=40),
        fraction=st.floats(0, 0.5),
        seed=st.integers(0, 2**70),
    )
    def test_a_share_of_the_labelled_texts_is_held_out_and_one_stays_in_training(
        self, texts: list[tuple[str, bool]], fraction: float, seed: int
    ) -> None:
        names, labelled = [text for text, _ in texts], np.array([has for _, has in texts], dtype=bool)
        held_out = HeldOutTexts.choose(names, labelled, fraction, seed, ALL)
        of_labelled = held_out.mask(names, len(names))[labelled]
        assert of_labelled.sum() <= fraction * labelled.sum() + 0.5
        assert not of_labelled.all() or not labelled.any()

    @pytest.mark.parametrize(
        ("texts", "fraction", "count"),
        [(60, 0.2, 12), (60, 0, 0), (30, None, 6), (3_000, None, 600), (11_182, None, 600), (20_000, None, 1_000)],
    )
    def test_small_datasets_hold_out_a_larger_share_by_default(
        self, texts: int, fraction: float | None, count: int
    ) -> None:
        names = numbered(0, texts)
        assert len(members(choose(names, fraction), names)) == count

    def test_at_most_4000_texts_are_held_out(self) -> None:
        names = numbered(0, 9_000)
        assert len(members(choose(names, 0.5), names)) == 4_000

    def test_order_case_and_white_space_do_not_matter(self) -> None:
        names = numbered(0, 200)
        shuffled = random.Random(0).sample([f" {name.upper().replace(' ', '  ')}\n" for name in names], 200)
        assert choose(names, 0.3) == choose(shuffled, 0.3)
        held_out = choose(names, 0.3)
        assert {" ".join(text.lower().split()) for text in members(held_out, shuffled)} == members(held_out, names)

    def test_another_seed_holds_out_other_texts(self) -> None:
        names = numbered(0, 200)
        assert members(choose(names, 0.3, seed=0), names) != members(choose(names, 0.3, seed=1), names)

    @few
    @given(
        before=st.integers(0, 80),
        after=st.integers(0, 160),
        first=st.none() | st.floats(0, 0.5),
        then=st.none() | st.floats(0, 0.5),
        seed=st.integers(0, 3),
    )
    def test_a_later_training_holds_out_no_text_from_which_an_earlier_one_has_learnt(
        self, before: int, after: int, first: float | None, then: float | None, seed: int
    ) -> None:
        old, new = numbered(0, before), numbered(20, after)
        earlier = choose(old, first)
        learnt_from = set(old) - members(earlier, old)
        later = choose(new, then, seed, earlier)
        assert not members(later, new) & learnt_from
        again = choose(new, then, seed, later)
        assert members(again, new) <= members(later, new)

    def test_halves_have_equally_many_texts_and_none_in_common(self) -> None:
        names = numbered(0, 100)
        held_out = choose(names, 0.4)
        first, second = (
            members(half, names) for half in held_out.halves(names, np.array([i % 2 == 0 for i in range(100)]))
        )
        assert first | second == members(held_out, names)
        assert not first & second
        even = {name for number, name in enumerate(names) if number % 2 == 0}
        assert abs(len(first & even) - len(second & even)) <= 1

    @pytest.mark.parametrize("saved", [3, {}, {"seed": 0}, {"seed": -1, "below": 0.5}, {"seed": 0, "below": 2.0}])
    def test_other_records_are_refused(self, saved: Any) -> None:
        with pytest.raises(ValueError, match="held_out"):
            HeldOutTexts.of_json(saved)

    def test_a_record_is_read_as_it_was_written(self) -> None:
        held_out = choose(numbered(0, 100), 0.3, seed=5)
        assert HeldOutTexts.of_json(json.loads(json.dumps(held_out.as_json()))) == held_out
        assert HeldOutTexts.of_json(None) == ALL


SHORT = ["--max-steps", 2]
STEPS = [*SHORT, "--batch-size", 8]


def texts_of(dataset: Path) -> list[str]:
    lines = (dataset / "train.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines if json.loads(line)["labels"]]


def queries(run: Path) -> set[str]:
    """The texts with which `tune`, `rank` and `build` measure a run."""
    memory = open_memory(run / "memory")
    lines = (run / "memory" / "instances.jsonl").read_text("utf-8").splitlines()
    return {json.loads(lines[row])["text"] for row in choose_queries(memory, run, 10_000, seed=0)}


class TestLaterRun:
    """A run on data that have grown, and lie in another order."""

    @pytest.fixture
    def grown(self, lesson: Path, tmp_path: Path) -> Path:
        folder = Path(shutil.copytree(lesson, tmp_path / "grown"))
        rows = [json.loads(line) for line in (lesson / "train.jsonl").read_text("utf-8").splitlines()]
        rows += [row | {"uid": f"new {row['uid']}", "text": f"quick {row['text']}"} for row in rows]
        random.Random(0).shuffle(rows)
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder

    @pytest.fixture
    def earlier(self, train: Train, tmp_path: Path) -> Path:
        assert train(*SHORT, "--out", tmp_path / "earlier").status == 0
        return tmp_path / "earlier"

    @pytest.mark.parametrize(
        "start",
        [
            ["--from", "earlier", *STEPS],
            ["--from", "earlier", *STEPS, "--seed", 7, "--validation-fraction", 0.5],
            ["--from", "earlier", *STEPS, "--train", "full"],
            ["--encoder", "earlier/checkpoint", *STEPS, "--max-length", 16, "--label-max-length", 8],
            ["--encoder", "static", "--static-from", "earlier/checkpoint", *STEPS, "--max-length", 16],
            ["--from", "earlier", "--epochs", 0],
            ["--from", "earlier", "--epochs", 0, "--query-encoder", "static"],
        ],
        ids=lambda start: " ".join(map(str, start)),
    )
    def test_texts_from_which_the_earlier_run_has_learnt_are_no_queries(
        self, earlier: Path, grown: Path, lesson: Path, tmp_path: Path, start: list[object]
    ) -> None:
        learnt_from = set(texts_of(lesson)) - queries(earlier)
        words = [str(word).replace("earlier", str(earlier)) for word in start]
        run = tmp_path / "later"
        assert recollect.main(["train", str(grown), "--out", str(run), *words]) == 0
        assert queries(run)
        assert not queries(run) & learnt_from
        assert queries(run) & (set(texts_of(grown)) - set(texts_of(lesson)))  # new texts follow the same rule
        third = tmp_path / "third"
        assert recollect.main(["train", str(grown), "--out", str(third), "--from", str(run), "--epochs", "0"]) == 0
        assert not queries(third) & learnt_from

    def test_the_second_run_says_which_instances_are_held_out(
        self, earlier: Path, grown: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        run = tmp_path / "later"
        words = ["--from", str(earlier), "--max-steps", "1", "--batch-size", "8", "--validation-fraction", "0.5"]
        assert recollect.main(["train", str(grown), "--out", str(run), *words]) == 0
        (line,) = [
            line for line in capfd.readouterr().err.splitlines() if "the encoder has learnt from none of them" in line
        ]
        assert f"{len(queries(run))} of 118 instances held out" in line

    def test_run_from_a_training_without_held_out_texts_measures_nothing(
        self, train: Train, grown: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        earlier, run = tmp_path / "earlier", tmp_path / "later"
        assert train(*SHORT, "--validation-fraction", 0, "--out", earlier).status == 0
        words = ["--from", str(earlier), "--max-steps", "1", "--batch-size", "8"]
        assert recollect.main(["train", str(grown), "--out", str(run), *words]) == 0
        assert "so nothing can be validated, tuned or calibrated" in capfd.readouterr().err
        assert training(run)["progress"]["best"] is None
        assert recollect.main(["tune", str(run)]) == 2
        expected = "that the training held out, found none; train on more texts, or with a larger"
        assert expected in capfd.readouterr().err

    def test_checkpoint_of_an_earlier_format_is_refused(self, earlier: Path, lesson: Path, tmp_path: Path) -> None:
        path = earlier / "checkpoint" / "recollect.json"
        saved = json.loads(path.read_text())
        del saved["held_out"]
        path.write_text(json.dumps(saved | {"format_version": 1}))
        with pytest.raises(EncoderError, match="expected format_version 2, found 1; train again"):
            recollect.train(lesson, out=tmp_path / "run", from_=earlier, epochs=0)


class TestDistillation:
    @pytest.mark.parametrize("trained", [True, False])
    def test_student_does_not_see_the_texts_that_its_trained_teacher_or_the_flag_holds_out(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, trained: bool
    ) -> None:
        lessons = []
        monkeypatch.setattr(query_encoder, "distil", lambda model, lesson, *_: lessons.append(lesson) or 1)
        flags = SHORT if trained else ["--epochs", 0, "--seed", 3, "--validation-fraction", 0.2]
        assert train(*flags, "--query-encoder", "static").status == 0
        teacher, student = (load_checkpoint(run_folder / name, "cpu") for name in ("checkpoint", "query_encoder"))
        assert (teacher.config.held_out == student.config.held_out) == trained
        assert student.config.held_out != ALL
        lines = (run_folder / "memory" / "instances.jsonl").read_text("utf-8").splitlines()
        seen = {json.loads(lines[row])["text"] for row in lessons[0].rows if row < len(lines)}
        assert len(queries(run_folder)) == 12
        assert not queries(run_folder) & seen

    def test_student_is_an_encoder_that_has_learnt(self, train: Train, run_folder: Path, lesson: Path) -> None:
        assert train("--epochs", 0, "--query-encoder", "static").status == 0
        held_out = load_checkpoint(run_folder / "query_encoder", "cpu").config.held_out
        assert members(held_out, texts_of(lesson)) == queries(run_folder)
        assert load_checkpoint(run_folder / "checkpoint", "cpu").config.held_out == ALL


def test_texts_equal_to_a_held_out_text_are_not_trained_on_even_without_labels(
    train: Train, lesson: Path, run_folder: Path, tmp_path: Path
) -> None:
    assert train(*SHORT).status == 0
    before = queries(run_folder)
    copy = Path(shutil.copytree(lesson, tmp_path / "copy"))
    with (copy / "train.jsonl").open("a", encoding="utf-8") as lines:
        lines.writelines(
            json.dumps({"uid": f"c{row}", "text": text, "labels": []}) + "\n" for row, text in enumerate(sorted(before))
        )
    outcome = train(*SHORT, "--overwrite", dataset=copy)
    assert outcome.status == 0
    assert queries(run_folder) == before
    all_texts = [json.loads(line)["text"] for line in (copy / "train.jsonl").read_text("utf-8").splitlines()]
    held_out = load_checkpoint(run_folder / "checkpoint", "cpu").config.held_out.mask(all_texts, len(all_texts))
    assert held_out[-len(before) :].all()
    assert f"{held_out.sum()} instances held out" in outcome.err
