"""Random numbers: numpy generators with a seed for each purpose, and torch's generators, which draw the dropout."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Purpose(IntEnum):
    """The use of random numbers. Each purpose has a stream of its own."""

    ORDER = 1
    POSITIVES = 2
    NEGATIVES = 3
    DROPOUT = 4
    TUNING = 5
    CLUSTERS = 6
    BANK = 7
    DISTILLATION = 8


def generator(seed: int, purpose: Purpose, number: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, purpose, number])


# States of torch's generators by device: the CPU's, and the GPU's if the model is on one.
RandomState = dict[str, Tensor]


def random_state(device: str) -> RandomState:
    state = {"cpu": torch.get_rng_state()}
    if device == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: RandomState) -> None:
    torch.set_rng_state(state["cpu"].clone())  # torch crashes if the state is a later row of a larger tensor
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].clone(), "cuda")
