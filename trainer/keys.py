"""The keys that a model makes while it learns: all instances and all labels, as it is at one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import nn

from trainer.encoder import embed
from trainer.ranks import Ranks
from trainer.tokens import Inputs


@dataclass(frozen=True)
class Keys:
    instances: Float[np.ndarray, "instance dim"]
    labels: Float[np.ndarray, "label dim"]


class KeyMaker:
    """Encodes everything when asked, unless it did since the last step; each rank encodes its share."""

    def __init__(self, model: nn.Module, queries: Inputs, labels: Inputs, dim: int, device: str, ranks: Ranks) -> None:
        self._model, self._dim, self._device, self._ranks = model, dim, device, ranks
        self._queries, self._labels = queries, labels
        self._made: tuple[int, Keys] | None = None

    def at(self, step: int) -> Keys:
        """The keys of the model after `step` steps, without dropout."""
        if self._made is None or self._made[0] != step:
            self._model.eval()
            self._made = step, Keys(self._embed(self._queries), self._embed(self._labels))
            self._model.train()
        return self._made[1]

    def _embed(self, inputs: Inputs) -> Float[np.ndarray, "row dim"]:
        start, stop = self._ranks.bounds(len(inputs))
        vectors = embed(self._model, inputs[start:stop], self._dim, self._device)
        return self._ranks.join_arrays(vectors, len(inputs), self._device)
