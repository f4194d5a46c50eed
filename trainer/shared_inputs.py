"""Checks that the processes of a training, which may run on several hosts, have the same dataset and run folder."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np

from recollect.trainer.distributed import Ranks
from recollect.trainer.errors import TrainingError


def check_shared_folder(folder: Path, ranks: Ranks, device: str) -> None:
    """Check that all ranks see the files that rank 0 writes into the run folder.

    Raises:
        TrainingError: On every rank, if one of them does not see a file of rank 0.
    """
    if ranks.size == 1:
        return
    path = folder / f".shared-{ranks.broadcast_object(secrets.token_hex(8))}"
    if ranks.first:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    ranks.broadcast_object(None)  # the other ranks wait until the file exists
    missing = int(ranks.all_reduce_array(np.array([not path.exists()], dtype=np.int64), device)[0])
    if ranks.first:
        path.unlink()
    if missing:
        raise TrainingError(
            f"--out {folder}: expected a folder that all hosts share, found that {missing} of {ranks.size} processes "
            "do not see the files of process 0; use shared storage"
        )


def check_same_dataset(folder: Path, sha256: str, ranks: Ranks, device: str) -> None:
    """Check that all ranks read the same labels and instances.

    Raises:
        TrainingError: On every rank, if the digests differ.
    """
    digest = np.frombuffer(bytes.fromhex(sha256), dtype=np.uint8)[None].copy()
    if (ranks.all_gather_arrays(digest, ranks.size, device) != digest).any():
        raise TrainingError(
            f"{folder}: expected the same dataset on all hosts, found different labels or instances; "
            "copy one dataset to all hosts"
        )
