"""Hard negatives: labels that the current encoder ranks high for a query although they are wrong (RAE-XMC, Table 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from recollect.trainer.data.split import LabelSets
from recollect.trainer.distributed import Ranks
from recollect.trainer.memory.search import nearest, nearest_approximate
from recollect.trainer.metrics import hits
from recollect.trainer.recipe import MineSearch
from recollect.trainer.sharded import Sharded


@dataclass(frozen=True)
class HardNegatives:
    """The labels nearest to each instance. -1 replaces each label that is no negative of the instance.

    Attributes:
        labels: The labels, with the axes (instance, top). Each rank holds its share of the instances.
    """

    labels: Sharded

    def draw(self, rows: Int[np.ndarray, " row"], m: int, random: np.random.Generator) -> Int[np.ndarray, " drawn"]:
        """Draw up to `m` negatives for each row, all with equal probability. All ranks must ask for the same rows."""
        candidates = self.labels.gather(rows)
        m = min(m, candidates.shape[1])
        sort_key = np.where(candidates >= 0, random.random(candidates.shape), 2.0)
        drawn = np.take_along_axis(candidates, np.argsort(sort_key, axis=1)[:, :m], axis=1)
        return drawn[drawn >= 0]


def mine(
    queries: Float[np.ndarray, "share dim"],
    label_keys: Float[np.ndarray, "label dim"],
    excluded: LabelSets,
    top: int,
    search: MineSearch,
    device: str,
    ranks: Ranks,
) -> HardNegatives:
    """Find the `top` nearest labels of each instance, and replace labels that are no negatives by -1.

    Args:
        queries: The vectors of this rank's share of the instances.
        excluded: The labels that are no negatives of each instance: its true labels and its filtered labels.
        top: Number of nearest labels, including the excluded ones.
        search: Exact search, or inverted lists for many labels on a CPU.
    """
    start, stop = ranks.bounds(len(excluded))
    top = min(top, len(label_keys))
    if search == "exact":
        _, found = nearest(queries, label_keys, top, device)
    else:
        _, found = nearest_approximate(queries, label_keys, top)
    own = hits(found, excluded.to_csr(len(label_keys))[start:stop])
    found = np.where(own, -1, found).astype(np.int32)
    return HardNegatives(Sharded(found, len(excluded), ranks, device))
