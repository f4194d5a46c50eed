"""A table with one trained vector for each label, whose rows are divided over the ranks during training.

Each rank holds its rows, their gradients and their moments, and updates them with Adam (Kingma and Ba, 2015). The
moments are in bfloat16, half of the size of float32. The arithmetic is in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.sharded import Sharded

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
# Number of rows that Adam updates at once.
_CHUNK_ROWS = 65_536


class LabelTable(nn.Module):
    """The vectors of all labels, as in a checkpoint; after `divide`, the vectors of this rank's share of the labels.

    The divided rows are no weights of the model for AdamW, for exchanges of gradients, or for `state_dict`.
    """

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.labels = labels
        self.rows: Tensor
        self.register_parameter("rows", nn.Parameter(torch.zeros(labels, dim)))
        self._ranks, self._first = ALONE, 0
        self._moments: list[Tensor] = []

    def forward(self, labels: Int[Tensor, " label"]) -> Float[Tensor, "label dim"]:
        """Return the vectors of labels. After `divide`, they must be this rank's."""
        return self.rows[labels - self._first]

    def divide(self, ranks: Ranks) -> None:
        """Keep this rank's share of the rows, with gradients and moments."""
        self._ranks, (self._first, stop) = ranks, ranks.bounds(self.labels)
        own = self.rows.detach()[self._first : stop].clone()
        self._moments = [torch.zeros_like(own, dtype=torch.bfloat16) for _ in _BETAS]
        self._keep(own)

    def find_own(self, pool: Int[np.ndarray, " label"]) -> tuple[int, int]:
        """Return the first place and the end of this rank's labels in ascending label positions."""
        first, last = np.searchsorted(pool, (self._first, self._first + len(self.rows)))
        return int(first), int(last)

    def _keep(self, own: Tensor) -> None:
        del self.rows
        self.register_buffer("rows", own.requires_grad_(), persistent=False)

    def start(self, vectors: Float[np.ndarray, "label dim"]) -> None:
        """Set this rank's rows, given the vectors of all labels."""
        with torch.no_grad():
            self.rows.copy_(torch.from_numpy(self._ranks.share(vectors)))

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Gather all rows on rank 0, which saves a checkpoint in this block. All ranks must call it."""
        own, shares = self.rows, self._shares(self.rows.detach())
        gathered = np.empty((self.labels, own.shape[1]), np.float32) if self._ranks.first else None
        start = 0
        for block in shares.blocks():
            if gathered is not None:
                gathered[start : start + len(block)] = block
            start += len(block)
        if gathered is not None:
            del self.rows
            self.rows = nn.Parameter(torch.from_numpy(gathered))
        try:
            yield
        finally:
            self._keep(own)

    @torch.no_grad()
    def update(self, rate: float, step: int) -> None:
        """Take step number `step`, from 0, of Adam with this rank's gradient, and remove the gradient."""
        gradient, (first, second) = self.rows.grad, self._moments
        if gradient is None:
            gradient = torch.zeros_like(self.rows)
        shrink, spread = (1 - beta ** (step + 1) for beta in _BETAS)
        for start in range(0, len(gradient), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            mean = first[part].float().lerp_(gradient[part], 1 - _BETAS[0])
            square = second[part].float().lerp_(gradient[part].square(), 1 - _BETAS[1])
            first[part], second[part] = mean, square
            self.rows[part].addcdiv_(mean, (square / spread).sqrt_().add_(_EPSILON), value=-rate / shrink)
        self.rows.grad = None

    def arrays(self) -> dict[str, Sharded]:
        """Return rows and moments, which training needs to resume. numpy has no bfloat16, so the moments are bytes."""
        arrays = {"rows": self.rows.detach()}
        arrays |= {f"moment-{n}": moment.view(torch.int8) for n, moment in enumerate(self._moments)}
        return {name: self._shares(array) for name, array in arrays.items()}

    def load_arrays(self, arrays: dict[str, Sharded]) -> None:
        """Restore the arrays that `arrays` returned."""
        with torch.no_grad():
            self.rows.copy_(torch.from_numpy(arrays["rows"].own))
        for n, moment in enumerate(self._moments):
            moment.view(torch.int8).copy_(torch.from_numpy(arrays[f"moment-{n}"].own))

    def _shares(self, own: Tensor) -> Sharded:
        return Sharded(own.cpu().numpy(), self.labels, self._ranks, self.rows.device.type)
