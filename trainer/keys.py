"""The keys that a model makes while it learns: all instances and all labels, as it is at one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from trainer.encoder import embed
from trainer.heads.head import Refinement
from trainer.ranks import Ranks
from trainer.tokens import Inputs


@dataclass(frozen=True)
class Keys:
    """The vectors at one step.

    Attributes:
        instances: This rank's share of the instances, for which it mines.
        labels: All labels.
        joined: All instances on the first rank, which validates; none on the others.
    """

    instances: Float[np.ndarray, "share dim"]
    labels: Float[np.ndarray, "label dim"]
    joined: Float[np.ndarray, "instance dim"]


class KeyMaker:
    """Encodes everything when asked, unless it did since the last step; each rank encodes its share.

    Args:
        model: What learns.
        queries: Its inputs for all instances.
        labels: Its inputs for all labels.
        device: Where it is.
        ranks: The processes that share the work.
        autocast: bfloat16 in the matrix products, as in the steps.
    """

    def __init__(
        self,
        model: Refinement,
        queries: Inputs,
        labels: Inputs,
        device: str,
        ranks: Ranks,
        autocast: bool = False,
    ) -> None:
        self._model, self._device, self._ranks, self._autocast = model, device, ranks, autocast
        self._queries, self._labels = queries, labels
        self._made: tuple[int, Keys] | None = None

    def at(self, step: int) -> Keys:
        """The keys of the model after `step` steps, without dropout."""
        if self._made is None or self._made[0] != step:
            self.forget()
            self._model.eval()
            instances, labels = self._embed_share(self._queries), self._embed_share(self._labels)
            self._model.train()
            all_labels = self._ranks.join_arrays(labels, len(self._labels), self._device)
            joined = self._ranks.collect(instances, len(self._queries), self._device)
            self._made = step, Keys(instances, all_labels, joined)
        return self._made[1]

    def forget(self) -> None:
        """Let go of keys that nobody will ask for again."""
        self._made = None

    def _embed_share(self, inputs: Inputs) -> Float[np.ndarray, "row dim"]:
        start, stop = self._ranks.bounds(len(inputs))
        return embed(self._model, inputs[start:stop], self._model.key_dim, self._device, autocast=self._autocast)
