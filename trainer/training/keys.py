"""The keys of all instances and labels at one training step. Each rank encodes its share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from recollect.trainer.distributed import Ranks
from recollect.trainer.encoding.encoder import embed
from recollect.trainer.encoding.tokens import Inputs
from recollect.trainer.heads.dual_encoder import DualEncoder
from recollect.trainer.sharded import Sharded


@dataclass(frozen=True)
class Keys:
    """The keys at one training step. Each rank holds its share of the instances, and all labels."""

    instances: Sharded
    labels: Float[np.ndarray, "label dim"]

    def part(self, view: slice) -> Keys:
        """Return a part of each key."""
        return Keys(dataclasses.replace(self.instances, own=self.instances.own[:, view]), self.labels[:, view])


class KeyMaker:
    """Encodes all instances and labels with the current model, and caches the keys until the next step.

    Args:
        autocast: Whether matrix products are in bfloat16, as in the training steps.
    """

    def __init__(
        self, model: DualEncoder, queries: Inputs, labels: Inputs, device: str, ranks: Ranks, autocast: bool = False
    ) -> None:
        self._model, self._device, self._ranks, self._autocast = model, device, ranks, autocast
        self._queries, self._labels = queries, labels
        self._cached: tuple[int, Keys] | None = None

    def at(self, step: int) -> Keys:
        """Return the keys of the model after `step` steps, without dropout."""
        if self._cached is None or self._cached[0] != step:
            self.clear()
            self._model.eval()
            instances, labels = self._embed_share(self._queries), self._embed_share(self._labels)
            self._model.train()
            all_labels = self._ranks.all_gather_arrays(labels, len(self._labels), self._device)
            shares = Sharded(instances, len(self._queries), self._ranks, self._device)
            self._cached = step, Keys(shares, all_labels)
        return self._cached[1]

    def clear(self) -> None:
        """Free the cached keys."""
        self._cached = None

    def _embed_share(self, inputs: Inputs) -> Float[np.ndarray, "row dim"]:
        start, stop = self._ranks.bounds(len(inputs))
        return embed(self._model, inputs[start:stop], self._model.key_dim, self._device, autocast=self._autocast)
