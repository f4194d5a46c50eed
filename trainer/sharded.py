"""Arrays whose rows are divided over the ranks, so that no process holds all vectors of the instances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from scipy import sparse

from recollect.trainer.distributed import ALONE, Ranks

# Number of rows that are converted to full precision, or exchanged, at once.
_CHUNK_ROWS = 65_536


@dataclass(frozen=True)
class Sharded:
    """An array of which each rank holds its share of the rows, in CPU memory."""

    own: np.ndarray
    rows: int
    ranks: Ranks = ALONE
    device: str = "cpu"

    @classmethod
    def of(cls, whole: np.ndarray, ranks: Ranks = ALONE, device: str = "cpu") -> Sharded:
        """Return the share of an array that every rank has. The share is a view."""
        return cls(ranks.share(whole), len(whole), ranks, device)

    def __len__(self) -> int:
        return self.rows

    @property
    def bounds(self) -> tuple[int, int]:
        """The first row and the end of this rank's share."""
        return self.ranks.bounds(self.rows)

    def find_own(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " own"], Int[np.ndarray, " own"]]:
        """Return the places in `rows` that this rank holds, and their rows in `own`."""
        start, stop = self.bounds
        places = np.flatnonzero((rows >= start) & (rows < stop))
        return places, rows[places] - start

    def gather(self, rows: Int[np.ndarray, " row"], to: int | None = None) -> np.ndarray:
        """Return rows of the whole array, on every rank or only on the rank `to`.

        Every rank must ask for the same rows. If only one rank receives the rows, the others get no useful array.
        """
        if self.ranks.size == 1:
            alone: np.ndarray = self.own[rows]
            return alone
        places, own = self.find_own(rows)
        found = np.zeros((len(rows), *self.own.shape[1:]), self.own.dtype)
        found[places] = self.own[own]
        summed = torch.from_numpy(found).to(self.device)  # each row comes from one rank, so the sum is exact
        if to is None:
            dist.all_reduce(summed)
        else:
            dist.reduce(summed, dst=to)
        gathered: np.ndarray = summed.cpu().numpy()
        return gathered

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows in order, block by block, on every rank. Every rank must read all blocks."""
        for start in range(0, self.rows, _CHUNK_ROWS):
            yield self.gather(np.arange(start, min(start + _CHUNK_ROWS, self.rows)))

    def label_sums(self, values: sparse.csr_matrix) -> Float[np.ndarray, "label dim"]:
        """Return the sum of each label's vectors, on every rank.

        Args:
            values: The relevance matrix Y, with the axes (instance, label).
        """
        sums = np.zeros((values.shape[1], self.own.shape[1]), np.float32)
        first, _ = self.bounds
        for start in range(0, len(self.own), _CHUNK_ROWS):
            own = self.own[start : start + _CHUNK_ROWS].astype(np.float32, copy=False)
            part = values[first + start : first + start + len(own)]
            used, columns = np.unique(part.indices, return_inverse=True)
            compact = sparse.csr_matrix((part.data, columns, part.indptr), shape=(len(own), len(used)))
            sums[used] += compact.T @ own
        return self.ranks.all_reduce_array(sums, self.device)
