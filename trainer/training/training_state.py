"""The saved state of a training.

A run that is killed at any moment resumes from the saved state, with the result of an uninterrupted run.

    state/step-00000120/   state.json            step, best checkpoint so far, seconds spent
                           model.safetensors     weights in training
                           optimizer.safetensors AdamW's moments
                           random.safetensors    random states of each rank
                           negatives.npy         mined labels
                           clusters.npy          cluster of each instance
                           table-*.npy           a head's table of label vectors, and its moments

The step number is the whole state of the sampler (`trainer.training.batches`). Step and seconds determine the learning
rate (`Recipe.rate`).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recollect.core.system.files import flush_files, read_json, save_array, save_rows
from recollect.trainer.distributed import Ranks
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.dual_encoder import DualEncoder
from recollect.trainer.randomness import random_state, restore_random_state
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.negatives import HardNegatives

_TABLE = "table-"


@dataclass
class Progress:
    """The progress of a training.

    Attributes:
        seconds: Time spent in training steps, before and after all interruptions, without the time for validation and
            saving.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    seconds: float = 0.0


@dataclass
class Learner:
    """Everything that changes during a training."""

    model: DualEncoder
    optimizer: torch.optim.Optimizer
    device: str
    negatives: HardNegatives | None = None
    clusters: Int[np.ndarray, " instance"] | None = None


def save_state(folder: Path, progress: Progress, learner: Learner, ranks: Ranks) -> None:
    """Write a state beside the older one, and remove the older one when the new one is complete.

    Raises:
        TrainingError: If the state cannot be written. The older state stays.
    """
    random = _gather_random_states(learner.device, ranks)  # every rank must call this function
    arrays = _shared_arrays(learner)
    if not ranks.first:
        for array in arrays.values():
            for _ in array.blocks():
                pass
        return
    final = folder / f"step-{progress.step:08d}"
    aside = folder / f".{final.name}-incoming"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        save_file(_copy_to_cpu(learner.model.state_dict()), aside / "model.safetensors")
        save_file(_moments(learner.optimizer), aside / "optimizer.safetensors")
        save_file(random, aside / "random.safetensors")
        if learner.clusters is not None:
            save_array(aside / "clusters.npy", learner.clusters)
        for name, array in arrays.items():
            shape = (len(array), *array.own.shape[1:])
            save_rows(aside / f"{name}.npy", shape, array.own.dtype, array.blocks())
        (aside / "state.json").write_text(json.dumps(dataclasses.asdict(progress)) + "\n")
        flush_files(aside)
        older = _saved_states(folder)
        aside.rename(final)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{folder}: the training state cannot be saved ({error}); the last state and the last good checkpoint are "
            "kept: free some disk space and continue with --resume"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def _shared_arrays(learner: Learner) -> dict[str, Sharded]:
    """Return the arrays, by file name, of which each rank holds a share."""
    table = {} if learner.model.table is None else learner.model.table.arrays()
    arrays = {f"{_TABLE}{name}": array for name, array in table.items()}
    return arrays if learner.negatives is None else arrays | {"negatives": learner.negatives.labels}


def load_state(folder: Path, learner: Learner, ranks: Ranks) -> Progress:
    """Load the newest saved state into a learner.

    Returns:
        The progress of that state. Without a saved state, the learner stays unchanged and the progress is zero.

    Raises:
        TrainingError: If a saved state cannot be read.
    """
    saved = _saved_states(folder)
    if not saved:
        return Progress()
    newest = saved[-1]
    try:
        progress = Progress(**read_json(newest / "state.json"))
        learner.model.load_state_dict(load_file(newest / "model.safetensors"))
        _restore_moments(learner.optimizer, load_file(newest / "optimizer.safetensors"))
        restore_random_state(
            {name: states[ranks.rank] for name, states in load_file(newest / "random.safetensors").items()}
        )
        learner.clusters, negatives = _load_array(newest / "clusters.npy"), newest / "negatives.npy"
        if learner.model.table is not None:
            paths = newest.glob(f"{_TABLE}*.npy")
            shares = {path.stem.removeprefix(_TABLE): _load_share(path, ranks, learner.device) for path in paths}
            learner.model.table.load_arrays(shares)
        mined = negatives.is_file()
        learner.negatives = HardNegatives(_load_share(negatives, ranks, learner.device)) if mined else None
    except (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise TrainingError(
            f"{newest}: expected a training state, found: {error}; remove it, or start again with --overwrite"
        ) from None
    return progress


def _saved_states(folder: Path) -> list[Path]:
    """Return the saved states, oldest first."""
    return sorted(folder.glob("step-*"))


def _load_array(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    array: np.ndarray = np.load(path, allow_pickle=False)
    return array


def _load_share(path: Path, ranks: Ranks, device: str) -> Sharded:
    shares = Sharded.of(np.load(path, mmap_mode="r", allow_pickle=False), ranks, device)
    return dataclasses.replace(shares, own=np.array(shares.own))


def _copy_to_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return AdamW's state. The arrays of weight number i have the names `i.exp_avg` and so on."""
    state = optimizer.state_dict()["state"]
    return _copy_to_cpu(
        {f"{number}.{name}": tensor for number, moments in state.items() for name, tensor in moments.items()}
    )


def _restore_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in saved.items():
        number, _, moment = name.partition(".")
        state.setdefault(int(number), {})[moment] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _gather_random_states(device: str, ranks: Ranks) -> dict[str, Tensor]:
    """Return the random states of all ranks, one row for each rank."""
    return {
        name: ranks.all_gather(state[None].to(device), ranks.size).cpu() for name, state in random_state(device).items()
    }
