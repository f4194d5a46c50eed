"""`recollect train --best`: the best contestant is kept, and impossible requests are refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recollect
from recollect.index_builder import best
from recollect.index_builder.best import Plan, choose_contestants, choose_plan, training_seconds
from recollect.index_builder.errors import BuildError
from recollect.model import open_model
from recollect.trainer.errors import TrainingError
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.left_out import choose_queries, held_out_of
from recollect.trainer.memory.memory import open_memory, read_texts
from tests.index_builder.reranker.conftest import write_names
from tests.tiny_runs import write_tiny_encoder


def train(tmp_path: Path, texts: int = 520, **flags: Any) -> Path:
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    dataset = write_names(tmp_path / "dataset", texts)
    return recollect.train(dataset, out=tmp_path / "run", encoder=str(encoder), max_length=16, best=True, **flags)


class Trained(NamedTuple):
    """A run, the texts on which each step judged it in order, and the texts that the contestants have learnt from."""

    run: Path
    judged: dict[str, list[tuple[str, ...]]]
    learnt: list[set[str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    judged: dict[str, list[tuple[str, ...]]] = {"tune": [], "rank_run": []}
    learnt: list[set[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        for step in judged:
            real = getattr(best, step)

            def record(settings: Any, part: HeldOutTexts, step: str = step, real: Any = real) -> Any:
                memory = open_memory(settings.run / "memory")
                texts = list(read_texts(memory.folder / "instances.jsonl"))
                judged[step].append(tuple(texts[row] for row in choose_queries(memory, settings.run, 10_000, 0, part)))
                held_out = held_out_of(memory, settings.run).mask(texts, len(texts))
                learnt.append({text for text, held in zip(texts, held_out, strict=True) if not held})
                if step == "tune":
                    settings = settings.model_copy(update={"lambda_": [0.2, 0.8], "top_b": [50]})
                return real(settings, part)

            patch.setattr(best, step, record)
        patch.setattr(best, "training_seconds", lambda *_: 0.5)
        run = train(tmp_path_factory.mktemp("best"), texts=420, minutes=60, validation_fraction=0.5)
    return Trained(run, judged, learnt)


def test_best_keeps_the_contestant_with_the_highest_metric(trained: Trained, tmp_path: Path) -> None:
    run = trained.run
    report = json.loads((run / "best.json").read_text())
    metrics = {each["name"]: each["metrics"]["nDCG@5"] for each in report["contestants"]}
    assert list(metrics) == ["untrained", "adapter", "static"]
    assert metrics[report["winner"]] == max(metrics.values())
    assert f"| **{report['winner']}** |" in (run / "best.md").read_text()
    assert not (run / "contestants").exists()
    is_static = json.loads((run / "checkpoint" / "config.json").read_text())["model_type"] == "recollect_static"
    assert is_static == (report["winner"] == "static")
    recollect.build(run, store=tmp_path / "store", index="flat", activate=True)
    assert open_model(tmp_path / "store", "current", None, None, 1, "cpu").predict("amber unlike basil")


def test_contestants_are_tuned_and_judged_on_the_same_texts_that_none_has_learnt_from(trained: Trained) -> None:
    *contestants, last = trained.judged["tune"]
    *judged, last_ranked = trained.judged["rank_run"]
    assert len(set(contestants)) == len(set(judged)) == 1
    assert len(contestants) == len(judged) == 3
    assert not set(contestants[0]) & set(judged[0])
    assert set(contestants[0]) | set(judged[0]) == set(last) == set(last_ranked)
    assert any(trained.learnt)
    assert not set(last) & set.union(*trained.learnt)
    assert json.loads((trained.run / "best.json").read_text())["queries"] == len(judged[0])


def test_no_contestant_starts_after_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "estimate_seconds", lambda *_: 0)
    run = train(tmp_path, texts=420, minutes=1e-6, validation_fraction=0.5)
    assert [each["name"] for each in json.loads((run / "best.json").read_text())["contestants"]] == ["untrained"]


def test_too_few_texts_to_choose_by_are_refused_before_anything_is_removed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(BuildError, match=r"--best: expected at least 200 held-out .*, found 30; train on more texts"):
        train(tmp_path, texts=150, overwrite=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("seconds_a_token", "seconds", "plan"),
    [
        (1, 600, Plan(128, static=True)),
        (2, 600, Plan(128, static=False)),
        (2, 360, Plan(64, static=True)),
        (4, 600, Plan(64, static=False)),
        (5, 420, Plan(None, static=True)),
    ],
)
def test_encoder_reads_as_many_tokens_as_its_share_of_the_time_allows(
    seconds_a_token: int, seconds: float, plan: Plan, capfd: pytest.CaptureFixture[str]
) -> None:
    assert choose_plan(lambda tokens: seconds_a_token * tokens, [128, 64], seconds) == plan
    said = capfd.readouterr().err
    assert ("only a static encoder is trained" if plan.length is None else f"at most {plan.length} tokens") in said
    assert ("no static encoder is trained" in said) == (not plan.static)


def test_slow_encoder_leaves_all_the_time_to_the_static_encoder(tmp_path: Path) -> None:
    (only,) = choose_contestants(tmp_path, "minilm", Plan(None, static=True))
    assert only.name == "static"
    untrained, adapter, static = choose_contestants(tmp_path, "minilm", Plan(64, static=True), "bf16")
    assert [each.name for each in (untrained, adapter, static)] == ["untrained", "adapter", "static"]
    assert untrained.flags["max_length"] == adapter.flags["max_length"] == 64
    assert untrained.flags["precision"] == "bf16"
    # Its training is in fp32, and it takes the vectors of the untrained run. The static one reads all tokens fast.
    assert not {"precision"} & {*adapter.flags, *static.flags}
    assert "max_length" not in static.flags


def test_trainings_share_the_time_that_tuning_and_ranking_leave(tmp_path: Path) -> None:
    untrained, *trained = choose_contestants(tmp_path, "minilm", Plan(128, static=True))
    assert training_seconds([untrained, *trained], 600, 600, None) == 0
    adapter = training_seconds(trained, 400, 600, measuring=20)
    static = training_seconds(trained[1:], 400 - adapter - 20, 600, measuring=20)
    assert adapter + static == pytest.approx(400 - 2 * 20 - best._LAST_MEASURINGS * 20)
    assert 0 < adapter < static
    assert training_seconds(trained[1:], 570, 600, None) == 270  # alone, half of the time is for tuning and ranking
    assert training_seconds(trained[1:], 10, 600, measuring=50) > 0  # a limit of 0 would be no limit


def test_best_replaces_files_only_with_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "_choose", lambda *_: pytest.fail("the folder was not checked first"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(BuildError, match="expected an empty folder, found files"):
        train(tmp_path)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_overwrite_clears_the_folder_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best, "_choose", lambda *_: ([], None))
    (tmp_path / "target" / "contestants").mkdir(parents=True)
    (tmp_path / "target" / "best.md").write_text("old")
    (tmp_path / "run").symlink_to("target")
    with pytest.raises(ValueError, match="empty"):  # there is no contestant
        train(tmp_path, overwrite=True)
    assert (tmp_path / "run").is_symlink()
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"best": True, "epochs": 3}, "--epochs: expected no such flag, because --best chooses it"),
        ({"best": True, "encoder": "static"}, "--encoder static: expected a pretrained encoder"),
        ({"best": True, "validation_fraction": 0}, "--validation-fraction 0: expected held-out instances"),
        ({"minutes": 5}, "--minutes: expected --best"),
    ],
)
def test_flags_that_contradict_best_are_refused(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        recollect.train(tmp_path, out=tmp_path / "run", **flags)
