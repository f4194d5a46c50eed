"""A training on several hosts: two launchers of `torchrun` that meet at one address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.errors import TrainingError
from recollect.trainer.shared_inputs import check_same_dataset, check_shared_folder
from tests.trainer.runs import PATIENCE_SECONDS, USUAL, results

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


def test_single_process_writes_no_file(tmp_path: Path) -> None:
    check_shared_folder(tmp_path / "run", ALONE, "cpu")
    assert not (tmp_path / "run").exists()


def test_different_datasets_are_refused(tmp_path: Path) -> None:
    check_same_dataset(tmp_path, DIGEST, Host(1, 2), "cpu")
    with pytest.raises(TrainingError, match="expected the same dataset on all hosts"):
        check_same_dataset(tmp_path, "cd" * 32, Host(1, 2), "cpu")


@pytest.mark.slow
def test_two_launchers_that_are_started_again_after_a_kill_reach_the_same_weights(
    lesson: Path, steady_encoder: Path, tmp_path: Path
) -> None:
    words = ["train", lesson, "--encoder", steady_encoder, *USUAL, "--train", "full", "--save-minutes", 0, "--resume"]
    assert _train_on_two_hosts([*words, "--out", tmp_path / "never"], tmp_path) == [0, 0]
    killed = [*words, "--out", tmp_path / "killed"]
    assert _train_on_two_hosts(killed, tmp_path, killed=tmp_path / "killed") == [1, 1]
    assert _train_on_two_hosts(killed, tmp_path) == [0, 0], (tmp_path / "log").read_text()
    assert results(tmp_path / "killed") == results(tmp_path / "never")


def _train_on_two_hosts(words: list[Any], folder: Path, killed: Path | None = None) -> list[int]:
    """Run two launchers with one process each, and return their statuses.

    Args:
        words: The verb and its flags.
        folder: Folder of the log.
        killed: Run folder. As soon as it has a saved state, the training process of one launcher is killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "hosts"]
    command = [*torchrun, "-m", "recollect", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "log").open("a") as log:
        launchers = [
            subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log) for _ in range(2)
        ]
    try:
        if killed is not None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not list((killed / "state").glob("step-*")):
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.01)
            os.kill(_child_of(launchers[1].pid), signal.SIGKILL)
        return [launcher.wait(4 * PATIENCE_SECONDS) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[-1])
