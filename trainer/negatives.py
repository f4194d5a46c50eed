"""Hard negatives: the labels that the encoder, as it is now, wrongly holds for right (RAE-XMC, Table 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from trainer.data.split import LabelSets
from trainer.metrics import hits
from trainer.ranks import Ranks
from trainer.search import nearest, nearest_approximate

MineSearch = Literal["exact", "approximate"]


@dataclass(frozen=True)
class HardNegatives:
    """For each instance the labels nearest to it that it does not have; -1 where a label was one of its own."""

    labels: Int[np.ndarray, "instance top"]

    def draw(self, rows: Int[np.ndarray, " row"], m: int, random: np.random.Generator) -> Int[np.ndarray, " drawn"]:
        """Up to `m` of each row's negatives, all equally likely."""
        listed = self.labels[rows]
        m = min(m, listed.shape[1])
        lots = np.where(listed >= 0, random.random(listed.shape), 2.0)
        drawn = np.take_along_axis(listed, np.argsort(lots, axis=1)[:, :m], axis=1)
        return drawn[drawn >= 0]


def mine(
    queries: Float[np.ndarray, "share dim"],
    label_keys: Float[np.ndarray, "label dim"],
    label_sets: LabelSets,
    top: int,
    search: MineSearch,
    device: str,
    ranks: Ranks,
) -> HardNegatives:
    """Find each instance's `top` nearest labels and strike out its own.

    Args:
        queries: The vectors of this rank's share of the instances.
        label_keys: The vectors of all labels.
        label_sets: The labels of each instance.
        top: Labels to look at, before the instance's own are struck out.
        search: Brute force, or inverted lists for many labels on a CPU.
        device: Where to search by brute force.
        ranks: The processes that share the work.
    """
    start, stop = ranks.bounds(len(label_sets))
    top = min(top, len(label_keys))
    if search == "exact":
        _, found = nearest(queries, label_keys, top, device)
    else:
        _, found = nearest_approximate(queries, label_keys, top)
    own = hits(found, label_sets.to_csr(len(label_keys))[start:stop])
    found = np.where(own, -1, found).astype(np.int32)
    return HardNegatives(ranks.join_arrays(found, len(label_sets), device))
