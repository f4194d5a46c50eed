"""A run whose labels a ranker finds better than votes: the text of an instance begins with the name of its label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from recollect.index_builder.build import build
from recollect.index_builder.reranker.rank import rank_run
from recollect.index_builder.settings import BuildSettings, RankSettings
from recollect.trainer.run import write_run
from recollect.trainer.train_settings import TrainSettings
from tests.conftest import Built, made_once
from tests.tiny_runs import copy_road_export

NAMES = ["amber", "basil", "cedar", "daisy", "ember", "flint", "grape", "hazel", "ivory", "jade", "kelp", "lemon"]
PHRASES = ("instead of {}", "and also {}", "compared with {}", "unlike {}", "next to {}", "far from {}")


class RankedRun(NamedTuple):
    """A run with a ranker, and a store whose current version has this ranker. Tests must not change them."""

    run: Path
    store: Path
    version: str


def write_names(folder: Path, texts: int = 150) -> Path:
    """Write a dataset: each text names its own label first, and then another label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for number in range(texts + 30):
        own, other = rng.choice(len(NAMES), size=2, replace=False).tolist()
        text = f"{NAMES[own]} {PHRASES[number % len(PHRASES)].format(NAMES[other])}"
        rows.append({"uid": f"i{number}", "text": text, "labels": [NAMES[own]]})
    lines = {"train": rows[:texts], "test": rows[texts:], "labels": [{"uid": name, "text": name} for name in NAMES]}
    for name, content in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def ranked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> RankedRun:
    with pytest.MonkeyPatch.context() as patch:
        copy_road_export(built, patch)
        folder = made_once(tmp_path_factory, "ranked", rank_names)
    return RankedRun(folder / "run", folder / "store", (folder / "version").read_text())


def rank_names(folder: Path) -> None:
    run, store = folder / "run", folder / "store"
    write_run(TrainSettings(epochs=0, dataset=write_names(folder / "dataset"), out=run, max_length=16))
    rank_run(RankSettings(run=run, threads=1))
    version = build(BuildSettings(run=run, store=store, index="flat", activate=True))
    (folder / "version").write_text(version)
