"""When batches are made of clusters, and of how many: small clusters first, larger ones later (NGAME, PRIME)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Curriculum:
    """Clusters are made every few epochs, each time half as many and so twice as large.

    Attributes:
        clusters: At first; 0: batches are random throughout.
        from_epoch: The first epoch of clustered batches; a training's first epoch is 0.
        every: Epochs between two clusterings.
        fewest: Batches of an epoch: clusters larger than a batch gain nothing.
    """

    clusters: int
    from_epoch: int
    every: int
    fewest: int

    def due(self, epoch: int) -> int:
        """Clusters to make at the beginning of this epoch; 0: none, as there are none yet or the last ones hold."""
        times, since = divmod(epoch - self.from_epoch, self.every)
        if self.clusters == 0 or times < 0 or since > 0:
            return 0
        return max(self.clusters >> times, self.fewest)
