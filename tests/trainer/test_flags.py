from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import TrainingError
from trainer.flags import check_flags
from trainer.settings import TrainSettings


def settings(**asked: Any) -> TrainSettings:
    return TrainSettings(**({"dataset": Path("data"), "out": Path("run")} | asked))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "go on and start again": (
        {"resume": True, "overwrite": True},
        "--resume, --overwrite: expected one of them, found both; go on, or start again",
    ),
    "vectors for nothing": (
        {"vectors": "zero/memory", "epochs": 0},
        "--vectors: expected --train adapter, as only an adapter learns from vectors, found --epochs 0",
    ),
    "vectors for a whole encoder": (
        {"vectors": "zero/memory", "train": "full"},
        "--vectors: expected --train adapter, as only an adapter learns from vectors, found --train full",
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
    "mining where nobody wants negatives": (
        {"mine_search": "auto", "hard_negatives": 0},
        "--mine-search: expected hard negatives to mine, found --hard-negatives 0; leave",
    ),
}


@pytest.mark.parametrize(("asked", "complaint"), REFUSED.values(), ids=REFUSED)
def test_flags_that_contradict_each_other_or_change_nothing_are_refused(asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TrainingError, match=re.escape(complaint)):
        check_flags(settings(**asked))


@pytest.mark.parametrize(
    "asked",
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
    ],
    ids=str,
)
def test_defaults_and_flags_that_go_together_are_let_through(asked: dict[str, Any]) -> None:
    check_flags(settings(**asked))


class TestInsideTheRunFolder:
    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        (tmp_path / "run" / "memory").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "run" / "memory")
        return tmp_path / "run"

    @pytest.mark.parametrize("flag", ["vectors", "encoder"])
    @pytest.mark.parametrize("path", ["run/memory", "run", "run/../run/memory", "link"])
    def test_nothing_may_be_read_from_what_is_written(self, out: Path, flag: str, path: str) -> None:
        given = f"{out.parent}/{path}"
        with pytest.raises(
            TrainingError, match=f"--{flag} .*: expected a folder outside --out {out}, which is written"
        ):
            check_flags(settings(out=out, **{flag: given}))

    def test_what_lies_elsewhere_or_is_no_folder_is_let_through(
        self, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "other").mkdir()
        check_flags(settings(out=out, vectors=tmp_path / "other", encoder=str(tmp_path / "other")))
        monkeypatch.chdir(out)
        check_flags(settings(out=Path(), encoder="minilm"))
