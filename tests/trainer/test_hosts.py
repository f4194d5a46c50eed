"""A training on several hosts: two launchers of `torchrun` that meet at one address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.trainer.distributed import Ranks, check_same_dataset, check_shared_folder
from recollect.trainer.errors import TrainingError
from tests.trainer.runs import PATIENCE_SECONDS, USUAL

REPOSITORY = Path(__file__).parents[2]
DIGEST = "ab" * 32


class Host(Ranks):
    """The second of two ranks. The other one has the given digest, and the given number of missing files."""

    digest, missing = DIGEST, 0

    def broadcast_object(self, value: Any) -> Any:
        return value

    def all_reduce_array(self, array: np.ndarray, device: str) -> np.ndarray:
        return array + self.missing

    def all_gather_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        return np.concatenate([np.frombuffer(bytes.fromhex(self.digest), np.uint8)[None], part])


def test_folder_without_the_file_of_the_first_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="expected a folder that all hosts share, found that 1 of 2 processes do"):
        check_shared_folder(tmp_path, Host(1, 2), "cpu")


def test_first_process_removes_its_file_and_refuses_a_folder_that_others_do_not_see(tmp_path: Path) -> None:
    check_shared_folder(tmp_path / "run", Host(0, 2), "cpu")
    assert list((tmp_path / "run").iterdir()) == []
    host = Host(0, 2)
    object.__setattr__(host, "missing", 1)
    with pytest.raises(TrainingError, match="use shared storage"):
        check_shared_folder(tmp_path / "run", host, "cpu")
    assert list((tmp_path / "run").iterdir()) == []


def test_different_datasets_are_refused(tmp_path: Path) -> None:
    check_same_dataset(tmp_path, DIGEST, Host(1, 2), "cpu")
    with pytest.raises(TrainingError, match="expected the same dataset on all hosts"):
        check_same_dataset(tmp_path, "cd" * 32, Host(1, 2), "cpu")


def test_two_launchers_that_meet_at_one_address_train_one_run(
    lesson: Path, steady_encoder: Path, tmp_path: Path
) -> None:
    """Each launcher starts one process. A single process then gets the same weights from the same batches."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "hosts"]
    words = ["train", lesson, "--encoder", steady_encoder, *USUAL, "--train", "full", "--epochs", 1, "--out"]
    command = [*torchrun, "-m", "recollect", *map(str, [*words, tmp_path / "run"])]
    with (tmp_path / "log").open("w") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        launchers = [
            subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log) for _ in range(2)
        ]
    try:
        statuses = [launcher.wait(PATIENCE_SECONDS) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()
    assert statuses == [0, 0], (tmp_path / "log").read_text()
    assert recollect.main([*map(str, [*words, tmp_path / "alone"])]) == 0
    together, alone = (np.load(tmp_path / name / "memory" / "keys.npy") for name in ("run", "alone"))
    np.testing.assert_allclose(together, alone, atol=1e-3)
