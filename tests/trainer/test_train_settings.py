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
    "resume and overwrite": (
        {"resume": True, "overwrite": True},
        "--resume, --overwrite: expected only one of these flags, found both; omit one",
    ),
    "vectors with train full": (
        {"vectors": "zero/memory", "train": "full"},
        "--vectors: expected --train adapter or --epochs 0, because all vectors change otherwise, found --train full",
    ),
    "label inputs with train full": (
        {"label_inputs": "enriched", "train": "full"},
        "--label-inputs: expected --train adapter, because an encoder reads label texts, found --train full",
    ),
    "label key alpha with text label keys": (
        {"label_key_alpha": 0.5},
        "--label-key-alpha: expected --label-keys enriched, which uses this weight, found --label-keys text",
    ),
    "mine every with a method over all labels": (
        {"mine_every": 10, "method": "dexml"},
        "--mine-every: expected hard negatives to mine, found --method dexml, which uses none; omit the flag, or set "
        "--hard-negatives",
    ),
    "mine top with a method without mined negatives": (
        {"mine_top": 50, "method": "infonce"},
        "--mine-top: expected hard negatives to mine, found --method infonce, which uses none; omit",
    ),
    "mine search with hard negatives 0": (
        {"mine_search": "auto", "hard_negatives": 0},
        "--mine-search: expected hard negatives to mine, found --hard-negatives 0; omit",
    ),
    "bank with a method without a head": (
        {"bank": 4},
        "--bank: expected --method prime, found --method rae; omit the flag",
    ),
    "margin with a method without triplets": (
        {"margin": (0.1, 0.3), "method": "unidec"},
        "--margin: expected --method prime, found --method unidec; omit the flag",
    ),
    "prototype with a method without prototypes": (
        {"prototype": "text", "method": "supcon"},
        "--prototype: expected --method prime, found --method supcon; omit the flag",
    ),
    "psl with a method without this loss": (
        {"psl": "pal", "method": "prime"},
        "--psl: expected --method unidec or supcon, found --method prime; omit the flag",
    ),
    "symmetric with a method without a loss of labels": (
        {"symmetric": False, "method": "dexml"},
        "--symmetric: expected --method prime or unidec or supcon, found --method dexml; omit the flag",
    ),
    "temperature with a method without softmax": (
        {"temperature": 0.1, "method": "prime"},
        "--temperature: expected a method with a softmax, found --method prime; omit the flag",
    ),
    "prototype with a repeated part": (
        {"prototype": "text,free,text", "method": "prime"},
        "--prototype: expected each part only once, found text,free,text; remove the repetition",
    ),
    "prototype of a free vector only": (
        {"prototype": "free", "method": "prime"},
        "--prototype free: expected a part that differs between labels of a cluster, found none; add text or centroid",
    ),
    "bank without free vectors in prototypes": (
        {"prototype": "text,centroid", "bank": 4, "method": "prime"},
        "--bank: expected free vectors in prototypes, found --prototype text,centroid; omit the flag",
    ),
    "kind of centroids without centroids in prototypes": (
        {"prototype": "text,free", "centroids": "ema", "method": "prime"},
        "--centroids: expected centroids in prototypes, found --prototype text,free; omit the flag",
    ),
    "triplets with a method without them": (
        {"triplets": "sum"},
        "--triplets: expected --method prime, found --method rae; omit the flag",
    ),
    "classifier norm with a method without a classifier": (
        {"classifier_norm": False, "method": "supcon"},
        "--classifier-norm: expected --method unidec, found --method supcon; omit the flag",
    ),
    "margin with the upper bound first": (
        {"margin": "0.3,.1", "method": "prime"},
        "--margin: expected the lower bound first, found 0.3,0.1; swap the bounds",
    ),
    "cluster from with a method without clusters": (
        {"cluster_from": 0},
        "--cluster-from: expected clustered batches, found --method rae, which uses none; omit the flag, or set "
        "--clusters",
    ),
    "cluster every with clusters 0": (
        {"cluster_every": 1, "clusters": 0, "method": "prime"},
        "--cluster-every: expected clustered batches, found --clusters 0; omit the flag, or set --clusters",
    ),
    "cluster double at with a method without clusters": (
        {"cluster_double_at": "25,50"},
        "--cluster-double-at: expected clustered batches, found --method rae, which uses none; omit the flag, or set "
        "--clusters",
    ),
}


@pytest.mark.parametrize(("given", "complaint"), REFUSED.values(), ids=REFUSED)
def test_contradictory_or_ignored_flags_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(complaint)):
        settings(**given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"train": "full"},
        {"method": "infonce"},
        {"epochs": 0, "overwrite": True},
        {"vectors": "zero/memory"},
        {"label_inputs": "text"},
        {"label_keys": "enriched", "label_key_alpha": 0.3},
        {"method": "dexml", "hard_negatives": 2, "mine_every": 10, "mine_top": 20, "mine_search": "exact"},
        {"mine_every": 10},
        {"clusters": 4, "cluster_from": 0, "cluster_every": 1},
        {"method": "supcon", "cluster_from": 2, "cluster_every": 1, "psl": "pal", "symmetric": False},
        {"method": "unidec", "temperature": 0.1, "mine_every": 3},
        {"method": "prime", "cluster_every": 2, "bank": 4, "margin": "0.2,0.2", "prototype": "free,text"},
        {"method": "prime", "prototype": "text", "symmetric": True},
        {"method": "prime", "centroids": "ema", "triplets": "sum", "text_loss": False, "regulariser": False},
        {"method": "unidec", "classifier_norm": False},
        {"method": "infonce", "hard_negatives": "all", "embedding_dropout": 0.1},
    ],
    ids=str,
)
def test_defaults_and_consistent_flags_are_accepted(given: dict[str, Any]) -> None:
    settings(**given)


class TestInsideTheRunFolder:
    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        (tmp_path / "run" / "memory").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "run" / "memory")
        return tmp_path / "run"

    @pytest.mark.parametrize("flag", ["vectors", "encoder"])
    @pytest.mark.parametrize("path", ["run/memory", "run", "run/../run/memory", "link"])
    def test_input_path_inside_the_run_folder_is_refused(self, out: Path, flag: str, path: str) -> None:
        given = f"{out.parent}/{path}"
        with pytest.raises(
            TrainingError, match=f"--{flag} .*: expected a folder outside --out {out}, which this command writes"
        ):
            settings(out=out, **{flag: given})

    def test_input_path_outside_the_run_folder_is_accepted(
        self, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "other").mkdir()
        settings(out=out, vectors=tmp_path / "other", encoder=str(tmp_path / "other"))
        monkeypatch.chdir(out)
        settings(out=Path(), encoder="minilm")
