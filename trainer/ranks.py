"""Several processes as one: who does which share, and what they must tell each other.

Started by `torchrun`, each process (rank) encodes its share of a batch's queries and of its labels; NCCL carries
tensors between GPUs, gloo between CPUs. The objective is the sum of what the ranks compute. Without `torchrun` there
is one rank, and every function here gives back what it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

# A rank may wait this long for one that saves a checkpoint or builds a memory.
_PATIENCE = timedelta(hours=2)


@dataclass(frozen=True)
class Ranks:
    """This process's number, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def bounds(self, rows: int, rank: int | None = None) -> tuple[int, int]:
        """Where a rank's share of `rows` rows starts and stops; shares differ by one row at most."""
        rank = self.rank if rank is None else rank
        return rows * rank // self.size, rows * (rank + 1) // self.size

    def share(self, rows: np.ndarray) -> np.ndarray:
        """This rank's part of an array."""
        start, stop = self.bounds(len(rows))
        part: np.ndarray = rows[start:stop]
        return part

    def join(self, part: Tensor, rows: int) -> Tensor:
        """The whole of which every rank holds a share, on every rank; no gradient flows through it."""
        if self.size == 1:
            return part
        most = -(-rows // self.size)
        padded = part.new_zeros((most, *part.shape[1:]))
        padded[: len(part)] = part.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        sizes = [stop - start for start, stop in (self.bounds(rows, rank) for rank in range(self.size))]
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def join_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        """As `join`, for arrays on the CPU."""
        if self.size == 1:
            return part
        joined: np.ndarray = self.join(torch.from_numpy(np.ascontiguousarray(part)).to(device), rows).cpu().numpy()
        return joined

    def sum(self, values: Tensor) -> Tensor:
        """Add up over the ranks; no gradient flows through it."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def largest(self, values: Tensor) -> Tensor:
        """The greatest over the ranks; no gradient flows through it."""
        if self.size == 1:
            return values
        greatest = values.detach().clone()
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
        return greatest

    def log_sum_exp(self, values: Float[Tensor, " query"]) -> Float[Tensor, " query"]:
        """The log of the sum, over all ranks, of e^value; differentiable on every rank."""
        if self.size == 1:
            return values
        joined: Tensor = _LogSumExp.apply(values)  # type: ignore[no-untyped-call]
        return joined

    def add_gradients(self, model: nn.Module) -> None:
        """Give every rank the sum of all ranks' gradients, in one message."""
        if self.size == 1:
            return
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        for weight in weights:
            if weight.grad is None:  # a rank may have had no rows
                weight.grad = torch.zeros_like(weight)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def agree(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


ALONE = Ranks()


class _LogSumExp(torch.autograd.Function):
    """d/dx_r of log sum_r e^{x_r} is e^{x_r - total}, times what all ranks' objectives want of the total."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values.contiguous())
        total = torch.logsumexp(torch.stack(parts), dim=0)
        ctx.save_for_backward(values, total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        values, total = ctx.saved_tensors
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient * torch.exp(values - total)


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the processes that `torchrun` started; alone when there are none."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # from here on "cuda" is this process's own
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
