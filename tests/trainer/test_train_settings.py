from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from recollect.trainer.errors import TrainingError
from recollect.trainer.train_settings import TrainSettings


def settings(**given: Any) -> TrainSettings:
    return TrainSettings(**({"dataset": Path("data"), "out": Path("run")} | given))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "vectors with train full": (
        {"vectors": "zero/memory", "train": "full"},
        "--vectors: expected --train adapter or --epochs 0, because all vectors change otherwise, found --train full",
    ),
    "label inputs with train full": (
        {"label_inputs": "enriched", "train": "full"},
        "--label-inputs: expected --train adapter, because an encoder reads label texts, found --train full",
    ),
    "head rate without a head": (
        {"method": "rae", "head_learning_rate": 1e-3},
        "--head-learning-rate: expected a method with a head, found --method rae; omit the flag",
    ),
    "mine every with a method over all labels": (
        {"mine_every": 10, "method": "dexml"},
        "--mine-every: expected hard negatives to mine (--hard-negatives), found --method dexml, which mines none; "
        "omit the flag",
    ),
    "bank with a method without a head": (
        {"bank": 4},
        "--bank: expected --method prime, found --method rae; omit the flag",
    ),
    "margin with a method without triplets": (
        {"margin": (0.1, 0.3), "method": "unidec"},
        "--margin: expected --method prime or ngame, found --method unidec; omit the flag",
    ),
    "head of supcon without projection": (
        {"train": "head", "method": "supcon"},
        "--train head: expected a method with a head, found --method supcon without --projection; train an adapter",
    ),
    "head rate of supcon without projection": (
        {"head_learning_rate": 1e-3, "method": "supcon"},
        "--head-learning-rate: expected a method with a head, found --method supcon without --projection; omit",
    ),
    "projection of supcon without normalisation": (
        {"projection": 8, "method": "supcon", "train": "full", "clusters": 0, "normalise": False},
        "--no-normalise: expected a method without a head, such as dexml, found --method supcon",
    ),
    "temperature with a method without softmax": (
        {"temperature": 0.1, "method": "prime"},
        "--temperature: expected a method with a softmax, found --method prime; omit the flag",
    ),
    "margin with its bounds swapped": (
        {"margin": (0.3, 0.1), "method": "prime"},
        "--margin: expected the lower bound first, found 0.3,0.1; swap the bounds",
    ),
    "prototype of a free vector only": (
        {"prototype": "free", "method": "prime"},
        "--prototype free: expected a part that differs between labels of a cluster, found none; add text or centroid",
    ),
    "more hard negatives than mined labels": (
        {"hard_negatives": 60},
        "--hard-negatives 60: expected at most 50, the labels of each instance that --mine-top keeps; choose fewer",
    ),
    "fewer mined labels than hard negatives": (
        {"mine_top": 1},
        "--hard-negatives 2: expected at most 1, the labels of each instance that --mine-top keeps; choose fewer, or a "
        "larger --mine-top",
    ),
    "static query encoder of a static encoder": (
        {"query_encoder": "static", "encoder": "static"},
        "--query-encoder static: expected --encoder with a transformer, found static; omit --query-encoder",
    ),
    "cluster from with a method without clusters": (
        {"cluster_from": 0},
        "--cluster-from: expected clustered batches (--clusters), found --method rae, which uses none; omit the flag",
    ),
}


@pytest.mark.parametrize(("given", "complaint"), REFUSED.values(), ids=REFUSED)
def test_contradictory_or_ignored_flags_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(complaint)):
        settings(**given)


class TestInsideTheRunFolder:
    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        (tmp_path / "run" / "memory").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "run" / "memory")
        return tmp_path / "run"

    @pytest.mark.parametrize("flag", ["vectors", "encoder"])
    @pytest.mark.parametrize("path", ["run/../run/memory", "link"])
    def test_input_path_inside_the_run_folder_is_refused(self, out: Path, flag: str, path: str) -> None:
        given = f"{out.parent}/{path}"
        with pytest.raises(
            TrainingError, match=f"--{flag} .*: expected a folder outside --out {out}, which this command writes"
        ):
            settings(out=out, **{flag: given})
