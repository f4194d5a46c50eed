"""The sources of a memory's keys: texts and the whole encoder, or vectors of a frozen encoder and the layers above.

A source makes the keys chunk by chunk. Each rank makes its share.
"""

from __future__ import annotations

import abc
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
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.memory.reuse import ReusableKeys


class KeySource(abc.ABC):
    """Makes the keys of a memory: those of all instances, then those of all labels."""

    @abc.abstractmethod
    def keys(self, start: int, stop: int, progress: Callable[[int], object]) -> Float[np.ndarray, "row dim"]:
        """The keys of rows `start` to `stop`, which are all instances or all labels."""


@dataclass(frozen=True)
class EncodedTexts(KeySource):
    """Keys that the whole encoder makes from texts.

    Attributes:
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
        self, texts: pa.LargeStringArray, start: int, max_length: int, side: Side, progress: Callable[[int], object]
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
