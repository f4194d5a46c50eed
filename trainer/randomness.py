"""Random numbers: numpy's, each drawn for a purpose from a seed of its own, and torch's, which drop units out."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Purpose(IntEnum):
    """What random numbers are for; no two purposes share a stream."""

    VALIDATION = 0
    ORDER = 1
    POSITIVES = 2
    NEGATIVES = 3
    DROPOUT = 4
    TUNING = 5
    CLUSTERS = 6
    BANK = 7


def generator(seed: int, purpose: Purpose, number: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, purpose, number])


# Of torch's generators, by the device they draw on: the CPU's, and the GPU's where the model is on one.
RandomState = dict[str, Tensor]


def random_state(device: str) -> RandomState:
    state = {"cpu": torch.get_rng_state()}
    if device == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: RandomState) -> None:
    torch.set_rng_state(state["cpu"].clone())  # torch crashes on a row of a larger tensor that is not its first
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].clone(), "cuda")
