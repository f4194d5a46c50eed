"""Where a memory's keys come from: texts through an encoder, or its vectors through what was trained on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from trainer.data.split import Entries
from trainer.encoder import Encoder, embed
from trainer.heads.adapter import Side
from trainer.heads.head import VectorModel
from trainer.ranks import ALONE, Ranks
from trainer.tokens import Inputs, VectorTable


@dataclass(frozen=True)
class EncodedTexts:
    """Keys from texts, through the encoder; each rank encodes its share."""

    encoder: Encoder
    labels: Entries
    instances: Entries
    ranks: Ranks

    def keys(self, start: int, stop: int, progress: Callable[[int], object]) -> Float[np.ndarray, "row dim"]:
        config, first_label = self.encoder.config, len(self.instances)
        side: Side = "queries" if start < first_label else "labels"
        if side == "queries":
            texts, max_length = self.instances.texts[start:stop], config.max_length
        else:
            texts, max_length = self.labels.texts[start - first_label : stop - first_label], config.label_max_length
        return _joined(
            self.ranks,
            len(texts),
            self.encoder.device,
            lambda own: self.encoder.encode(
                texts[own].to_pylist(), max_length, progress, side, start - first_label + own.start
            ),
        )


@dataclass(frozen=True)
class AdaptedKeys:
    """Keys from what an adapter and its head read of instances and labels; each rank makes its share."""

    model: VectorModel
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
        return _joined(
            self.ranks,
            len(table),
            self.device,
            lambda own: embed(self.model, table[own], self.model.key_dim, self.device, progress),
        )


def _joined(ranks: Ranks, rows: int, device: str, make: Callable[[slice], np.ndarray]) -> Float[np.ndarray, "row dim"]:
    """The vectors of all rows, of which each rank makes its share."""
    return ranks.join_arrays(make(slice(*ranks.bounds(rows))), rows, device)


# What makes the keys of a stretch of rows, all of them instances or all of them labels.
KeySource = EncodedTexts | AdaptedKeys
