"""Computes the keys of instances and labels: at one training step, and after the training for the memory.

Each rank encodes its share. A key source makes the keys of a memory, chunk by chunk: either from texts, with the whole
encoder, or from the vectors of a frozen encoder, with an adapter and a head.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float

from recollect.trainer.data.split import Entries
from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.encoding.encoder import Encoder, embed
from recollect.trainer.encoding.tokens import Inputs, VectorTable
from recollect.trainer.heads.adapter import Side
from recollect.trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from recollect.trainer.memory.reuse import ReusableKeys
from recollect.trainer.sharded import Sharded


@dataclass(frozen=True)
class Keys:
    """The keys at one training step.

    Attributes:
        instances: Keys of the instances. Each rank holds its share.
        labels: Keys of all labels, on every rank.
    """

    instances: Sharded
    labels: Float[np.ndarray, "label dim"]

    def part(self, view: slice) -> Keys:
        """Return a part of each key."""
        return Keys(dataclasses.replace(self.instances, own=self.instances.own[:, view]), self.labels[:, view])


class KeyMaker:
    """Encodes all instances and labels with the current model, and caches the keys until the next step.

    Args:
        model: The model in training.
        queries: Inputs of all instances.
        labels: Inputs of all labels.
        device: Where the model is.
        ranks: The processes that share the work.
        autocast: Whether matrix products are in bfloat16, as in the training steps.
    """

    def __init__(
        self,
        model: DualEncoder,
        queries: Inputs,
        labels: Inputs,
        device: str,
        ranks: Ranks,
        autocast: bool = False,
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


class KeySource(abc.ABC):
    """Makes the keys of a memory: those of all instances, then those of all labels."""

    @abc.abstractmethod
    def keys(self, start: int, stop: int, progress: Callable[[int], object]) -> Float[np.ndarray, "row dim"]:
        """The keys of rows `start` to `stop`, which are all instances or all labels."""


@dataclass(frozen=True)
class EncodedTexts(KeySource):
    """Keys that the whole encoder makes from texts.

    Attributes:
        encoder: The encoder.
        labels: The labels.
        instances: The instances.
        ranks: The processes that share the work.
        reusable: Keys of an earlier run, which are not computed again.
    """

    encoder: Encoder
    labels: Entries
    instances: Entries
    ranks: Ranks
    reusable: ReusableKeys | None = None

    def keys(self, start: int, stop: int, progress: Callable[[int], object]) -> Float[np.ndarray, "row dim"]:
        first_label, config = len(self.instances), self.encoder.config
        side: Side = "queries" if start < first_label else "labels"
        if side == "queries":
            texts, max_length = self.instances.texts[start:stop], config.max_length
        else:
            texts, max_length = self.labels.texts[start - first_label : stop - first_label], config.label_max_length
        return _gather_shares(
            self.ranks,
            len(texts),
            self.encoder.device,
            lambda own: self._encode_share(texts[own], start + own.start, max_length, side, progress),
        )

    def _encode_share(
        self,
        texts: pa.LargeStringArray,
        start: int,
        max_length: int,
        side: Side,
        progress: Callable[[int], object],
    ) -> Float[np.ndarray, "row dim"]:
        """Encode the texts of the rows from `start` on, except those with a reusable key."""
        first = start - len(self.instances)
        if self.reusable is None:
            return self.encoder.encode(texts.to_pylist(), max_length, progress, side, first)
        rows = self.reusable.rows[start : start + len(texts)]
        known = rows >= 0
        vectors = np.empty((len(texts), self.encoder.dim), dtype=np.float32)
        vectors[known] = self.reusable.memory.keys[rows[known]]
        new = texts.filter(pa.array(~known)).to_pylist()
        if new:
            vectors[~known] = self.encoder.encode(new, max_length, progress, side, first)
        return vectors


@dataclass(frozen=True)
class AdaptedKeys(KeySource):
    """Keys that an adapter and its head make from the vectors of a frozen encoder."""

    model: VectorDualEncoder
    instances: Float[np.ndarray, "instance dim"]
    labels: Inputs
    device: str
    ranks: Ranks = ALONE

    def keys(self, start: int, stop: int, progress: Callable[[int], object]) -> Float[np.ndarray, "row dim"]:
        first_label = len(self.instances)
        table: Inputs
        if start < first_label:
            table = VectorTable(torch.from_numpy(np.array(self.instances[start:stop], dtype=np.float32)))
        else:
            table = self.labels[start - first_label : stop - first_label]
        return _gather_shares(
            self.ranks,
            len(table),
            self.device,
            lambda own: embed(self.model, table[own], self.model.key_dim, self.device, progress),
        )


def _gather_shares(
    ranks: Ranks, rows: int, device: str, make: Callable[[slice], np.ndarray]
) -> Float[np.ndarray, "row dim"]:
    """Make this rank's share of the rows, and return the shares of all ranks."""
    return ranks.all_gather_arrays(make(slice(*ranks.bounds(rows))), rows, device)
