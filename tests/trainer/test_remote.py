"""The memory of a run without training, encoded by processes of Ray (`recollect train --epochs 0 --ray`)."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.trainer.encoding.checkpoint import save_checkpoint
from recollect.trainer.encoding.remote import encode_chunk
from recollect.trainer.errors import EncoderError, TrainingError
from recollect.trainer.train_settings import TrainSettings
from tests.trainer.conftest import load

PATIENCE_SECONDS = 300
SMALL_CHUNKS = "from recollect.trainer.memory import memory_writer\nmemory_writer._CHUNK_TEXTS = 4"


def keys(run: Path) -> bytes:
    return (run / "memory" / "keys.npy").read_bytes()


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


# After the second chunk, the process kills itself.
KILLED = f"""
{SMALL_CHUNKS}
import os, signal
from recollect.trainer.encoding.remote import RemoteTexts
chunks_of = RemoteTexts.chunks
def chunks_and_kill(self, *arguments):
    for number, chunk in enumerate(chunks_of(self, *arguments)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield chunk
RemoteTexts.chunks = chunks_and_kill
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_killed_encoding_with_ray_continues_and_gives_the_bytes_of_one_process(
    toy: Path, tiny_bert: Any, tmp_path: Path
) -> None:
    def train(out: str, prelude: str, *flags: str) -> subprocess.CompletedProcess[bytes]:
        lengths = ["--max-length=32", "--label-max-length=8"]
        program = f"{prelude}\nimport sys, recollect\nsys.exit(recollect.main())"
        arguments = ["train", str(toy), "--out", str(tmp_path / out), "--encoder", str(tiny_bert.folder), "--epochs=0"]
        return subprocess.run(
            [sys.executable, "-c", program, *arguments, *lengths, *flags],
            stderr=subprocess.PIPE,
            timeout=PATIENCE_SECONDS,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    assert train("alone", SMALL_CHUNKS).returncode == 0
    assert train("run", KILLED, "--ray").returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "run" / "memory" / "progress.json").read_text())["keys_done"] == 8
    again = train("run", SMALL_CHUNKS, "--ray")
    assert b"19 keys, 11 written now" in again.stderr
    assert keys(tmp_path / "run") == keys(tmp_path / "alone")
