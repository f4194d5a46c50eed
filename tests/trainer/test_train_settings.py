from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import TrainingError
from trainer.train_settings import TrainSettings


def settings(**given: Any) -> TrainSettings:
    return TrainSettings(**({"dataset": Path("data"), "out": Path("run")} | given))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "resume and overwrite": (
        {"resume": True, "overwrite": True},
        "--resume, --overwrite: expected one of them, found both; resume, or start again",
    ),
    "vectors for nothing": (
        {"vectors": "zero/memory", "epochs": 0},
        "--vectors: expected --train adapter, as only an adapter trains on vectors, found --epochs 0",
    ),
    "vectors for a whole encoder": (
        {"vectors": "zero/memory", "train": "full"},
        "--vectors: expected --train adapter, as only an adapter trains on vectors, found --train full",
    ),
    "label inputs of a whole encoder": (
        {"label_inputs": "enriched", "train": "full"},
        "--label-inputs: expected --train adapter, as a whole encoder reads a label's text, found --train full",
    ),
    "weight of what is not mixed": (
        {"label_key_alpha": 0.5},
        "--label-key-alpha: expected --label-keys enriched, which it is a weight of, found --label-keys text",
    ),
    "mining where the pool is the whole label space": (
        {"mine_every": 10, "method": "dexml"},
        "--mine-every: expected hard negatives to mine, found --method dexml without any; leave it out, or give "
        "--hard-negatives",
    ),
    "mining where the pool is the batch's labels": (
        {"mine_top": 50, "method": "infonce"},
        "--mine-top: expected hard negatives to mine, found --method infonce without any; leave",
    ),
    "mining without negatives": (
        {"mine_search": "auto", "hard_negatives": 0},
        "--mine-search: expected hard negatives to mine, found --hard-negatives 0; leave",
    ),
    "a free vector's bank without a head": (
        {"bank": 4},
        "--bank: expected --method prime, found --method rae; leave it out",
    ),
    "margins without triplets": (
        {"margin": (0.1, 0.3), "method": "unidec"},
        "--margin: expected --method prime, found --method unidec; leave it out",
    ),
    "a prototype without its network": (
        {"prototype": "text", "method": "supcon"},
        "--prototype: expected --method prime, found --method supcon; leave it out",
    ),
    "positives' softmax without any": (
        {"psl": "pal", "method": "prime"},
        "--psl: expected --method unidec or supcon, found --method prime; leave it out",
    ),
    "both sides of a loss with one": (
        {"symmetric": False, "method": "dexml"},
        "--symmetric: expected --method prime or unidec or supcon, found --method dexml; leave it out",
    ),
    "tau of no softmax": (
        {"temperature": 0.1, "method": "prime"},
        "--temperature: expected a method with a softmax, found --method prime; leave it out",
    ),
    "a part twice": (
        {"prototype": "text,free,text", "method": "prime"},
        "--prototype: expected each part once, found text,free,text; leave the second out",
    ),
    "prototypes that tell no labels apart": (
        {"prototype": "free", "method": "prime"},
        "--prototype free: expected a part that differs within a cluster, found none; add text or centroid",
    ),
    "free vectors that nothing reads": (
        {"prototype": "text,centroid", "bank": 4, "method": "prime"},
        "--bank: expected free vectors in prototypes, found --prototype text,centroid; leave it out",
    ),
    "margins out of order": (
        {"margin": "0.3,.1", "method": "prime"},
        "--margin: expected the lower bound first, found 0.3,0.1; swap them",
    ),
    "when to cluster what is not": (
        {"cluster_from": 0},
        "--cluster-from: expected batches made of clusters, found --method rae without any; leave it out, or give "
        "--clusters",
    ),
    "how often to cluster what shall not be": (
        {"cluster_every": 1, "clusters": 0, "method": "prime"},
        "--cluster-every: expected batches made of clusters, found --clusters 0; leave it out, or give --clusters",
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
            TrainingError, match=f"--{flag} .*: expected a folder outside --out {out}, which is written"
        ):
            settings(out=out, **{flag: given})

    def test_input_path_outside_the_run_folder_is_accepted(
        self, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "other").mkdir()
        settings(out=out, vectors=tmp_path / "other", encoder=str(tmp_path / "other"))
        monkeypatch.chdir(out)
        settings(out=Path(), encoder="minilm")
