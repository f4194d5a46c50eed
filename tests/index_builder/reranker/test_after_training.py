"""`--rank` of `recollect train` and `recollect tune`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import recollect
from tests.index_builder.reranker.conftest import RankedRun
from tests.trainer.helpers import random_sets, random_units
from tests.trainer.test_tune import make_run

SMALL_GRID = ["--lambda", "0.5", "--temperature", "0.04", "--top-b", "50", "--label-key-alpha", "0"]


@pytest.fixture
def run(ranked: RankedRun, tmp_path: Path) -> Path:
    """A run without a ranker, for which a ranker helps."""
    copy = Path(shutil.copytree(ranked.run, tmp_path / "run"))
    shutil.rmtree(copy / "memory" / "ranker")
    return copy


def small_run(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    return make_run(folder, random_units(rng, 60, 4), random_sets(rng, 50, 10))


def test_train_fits_a_ranker_after_the_memory(ranked: RankedRun, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(ranked.run.parent / "dataset"), "--out", str(run), "--epochs", "0", "--max-length", "16"]
    assert recollect.main(arguments) == 0
    assert not (run / "memory" / "ranker").exists()  # without the flag, no ranker is fitted
    assert recollect.main([*arguments, "--rank", "auto"]) == 0
    assert "the ranker is kept" in capsys.readouterr().out
    assert (run / "memory" / "ranker" / "ranker.json").is_file()


def test_tune_fits_a_ranker_for_its_metric_and_the_new_defaults(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", str(run), *SMALL_GRID, "--rank", "yes", "--metric", "P@1", "--json"]
    assert recollect.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ranking"]["kept"]
    assert (printed["metric"], printed["ranking"]["metric"]) == ("P@1", "P@1")
    report = json.loads((run / "memory" / "ranker" / "report.json").read_text())
    assert report["fitted_for"]["lambda"] == printed["best"]["lambda"]


def test_too_few_texts_are_an_error_only_with_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", str(small_run(tmp_path)), *SMALL_GRID, "--rank"]
    assert recollect.main([*arguments, "auto"]) == 0
    printed = capsys.readouterr()
    assert "best" in printed.out
    assert "rank: none; " in printed.err
    assert recollect.main([*arguments, "yes"]) == 2
    assert "at least 100 instances with labels that the training held out, found" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_a_missing_package_is_an_error_before_the_work_begins(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("recollect.index_builder.reranker.rank", "recollect.index_builder.reranker.fit"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "lightgbm", None)  # importing it then fails as if it were not installed
    out = tmp_path / "run"
    arguments = {"train": [str(tmp_path), "--out", str(out)], "tune": [str(out)]}[verb]
    assert recollect.main([verb, *arguments, "--rank", "auto"]) == 2
    assert capsys.readouterr().err == (
        f"recollect {verb}: --rank auto: expected lightgbm, which fits the ranker, found no such package; "
        "pip install 'recollect-xmc[build]', or omit --rank\n"
    )
    assert not out.exists()
