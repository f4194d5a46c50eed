"""The memory of a run without training, encoded by processes of Ray (`recollect train --epochs 0 --ray`)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.trainer.encoding.checkpoint import save_checkpoint
from recollect.trainer.encoding.remote import encode_chunk
from recollect.trainer.errors import EncoderError, TrainingError
from recollect.trainer.train_settings import TrainSettings
from tests import forked
from tests.trainer.conftest import load

PATIENCE_SECONDS = 300


def keys(run: Path) -> np.ndarray:
    found: np.ndarray = np.load(run / "memory" / "keys.npy").astype(np.float32)
    return found


def test_another_encoder_on_another_machine_is_refused(tiny_bert: Any, tmp_path: Path) -> None:
    save_checkpoint(load(tiny_bert.folder), tmp_path / "checkpoint")
    with pytest.raises(EncoderError, match="expected the encoder of this run on all machines, found another one"):
        encode_chunk((str(tmp_path / "checkpoint"), "0" * 64, "cpu"), ["text"], 8, "queries", 0)


@pytest.mark.parametrize(
    ("changes", "found"), [({"epochs": 1}, "a training"), ({"epochs": None}, "a training"), ({"vectors": "x"}, "--vec")]
)
def test_ray_needs_a_run_without_training(toy: Path, tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(TrainingError, match=f"--ray: expected --epochs 0, .*, found {found}"):
        TrainSettings(dataset=toy, out=tmp_path, ray="local", **{"epochs": 0} | changes)


def test_nothing_is_written_if_no_cluster_answers(
    toy: Path, tiny_bert: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", toy, "--out", tmp_path / "run", "--encoder", tiny_bert.folder, "--epochs", 0]
    assert recollect.main([*map(str, arguments), "--ray", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "recollect train: --ray 127.0.0.1:1: expected a Ray cluster, found: Connection refused" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_processes_of_ray_write_the_keys_of_one_process(toy: Path, tiny_bert: Any, tmp_path: Path) -> None:
    lengths = ["--max-length=32", "--label-max-length=8"]
    arguments = ["train", str(toy), "--encoder", str(tiny_bert.folder), "--epochs=0", *lengths, "--out"]
    assert recollect.main([*arguments, str(tmp_path / "alone")]) == 0
    # Chunks of four texts, so that there are several.
    program = (
        "from recollect.trainer.memory import memory_writer\nmemory_writer._CHUNK_TEXTS = 4\n"
        "import sys, recollect\nsys.exit(recollect.main())"
    )
    done = forked.run(
        [sys.executable, "-c", program, *arguments, str(tmp_path / "run"), "--ray"],
        stderr=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(keys(tmp_path / "run"), keys(tmp_path / "alone"), atol=1e-3)
