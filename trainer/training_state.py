"""The state of a training, saved so that a run killed at any moment goes on as if it had never been.

    state/step-00000120/   state.json            step, best checkpoint so far, seconds spent
                           model.safetensors     what learns
                           optimizer.safetensors AdamW's moments
                           random.safetensors    each rank's random states
                           negatives.npy         the mined labels
                           clusters.npy          the cluster of each instance
                           head-*.npy            what a head needs beside its weights

The sampler has no state but the step (`trainer.batches`), the learning rate none but step and seconds (`Recipe.rate`).
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

from trainer.errors import TrainingError
from trainer.files import flush_files, save_array
from trainer.heads.head import Refinement
from trainer.negatives import HardNegatives
from trainer.randomness import random_state, restore
from trainer.ranks import Ranks

_HEAD = "head-"


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: Steps done.
        best: The best validation score so far; None before the first.
        best_step: Steps done when it was reached.
        seconds: Time spent on learning, over all interruptions; validation and saving do not count.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    seconds: float = 0.0


@dataclass
class Learner:
    """What changes as a training goes on."""

    model: Refinement
    optimizer: torch.optim.Optimizer
    device: str
    negatives: HardNegatives | None = None
    clusters: Int[np.ndarray, " instance"] | None = None


def save_state(folder: Path, progress: Progress, learner: Learner, ranks: Ranks) -> None:
    """Write a state beside the older one, which goes once the new one is whole.

    Raises:
        TrainingError: If the disk is full; the older state stays.
    """
    random = _random_states(learner.device, ranks)  # every rank has its part in this
    if not ranks.first:
        return
    final = folder / f"step-{progress.step:08d}"
    aside = folder / f".{final.name}-incoming"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        save_file(_plain(learner.model.state_dict()), aside / "model.safetensors")
        save_file(_moments(learner.optimizer), aside / "optimizer.safetensors")
        save_file(random, aside / "random.safetensors")
        if learner.negatives is not None:
            save_array(aside / "negatives.npy", learner.negatives.labels)
        if learner.clusters is not None:
            save_array(aside / "clusters.npy", learner.clusters)
        if learner.model.head is not None:
            for name, array in learner.model.head.scratch().items():
                save_array(aside / f"{_HEAD}{name}.npy", array)
        (aside / "state.json").write_text(json.dumps(dataclasses.asdict(progress)) + "\n")
        flush_files(aside)
        older = _saved(folder)
        aside.rename(final)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{folder}: the training's state cannot be saved ({error}); the last one and the last good checkpoint are "
            "kept: make room and go on with --resume"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def load_state(folder: Path, learner: Learner, ranks: Ranks) -> Progress:
    """Set a learner to the newest saved state.

    Returns:
        Where that state stands; the beginning, with nothing changed, if there is none.

    Raises:
        TrainingError: If a saved state cannot be read.
    """
    saved = _saved(folder)
    if not saved:
        return Progress()
    newest = saved[-1]
    try:
        progress = Progress(**json.loads((newest / "state.json").read_text()))
        learner.model.load_state_dict(load_file(newest / "model.safetensors"))
        _restore_moments(learner.optimizer, load_file(newest / "optimizer.safetensors"))
        restore({name: states[ranks.rank] for name, states in load_file(newest / "random.safetensors").items()})
        negatives, learner.clusters = (_array(newest / f"{name}.npy") for name in ("negatives", "clusters"))
        if learner.model.head is not None:
            arrays = {path.stem.removeprefix(_HEAD): _array(path) for path in newest.glob(f"{_HEAD}*.npy")}
            learner.model.head.restore({name: array for name, array in arrays.items() if array is not None})
        learner.negatives = None if negatives is None else HardNegatives(negatives)
    except (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise TrainingError(
            f"{newest}: expected a training's state, found: {error}; remove it, or --overwrite"
        ) from None
    return progress


def _saved(folder: Path) -> list[Path]:
    """Saved states, oldest first."""
    return sorted(folder.glob("step-*"))


def _array(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    array: np.ndarray = np.load(path, allow_pickle=False)
    return array


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state of weight number i as `i.exp_avg` and so on."""
    state = optimizer.state_dict()["state"]
    return _plain({f"{number}.{name}": tensor for number, moments in state.items() for name, tensor in moments.items()})


def _restore_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in saved.items():
        number, _, moment = name.partition(".")
        state.setdefault(int(number), {})[moment] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _random_states(device: str, ranks: Ranks) -> dict[str, Tensor]:
    """Each rank's states, row by row."""
    return {name: ranks.join(state[None].to(device), ranks.size).cpu() for name, state in random_state(device).items()}
