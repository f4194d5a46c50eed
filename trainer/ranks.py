"""Several processes as one: who does which share, and what they must tell each other.

Started by `torchrun`, each process (rank) encodes its share of a batch's queries and of its labels; NCCL carries
tensors between GPUs, gloo between CPUs. The objective is the sum of what the ranks compute. Without `torchrun` there
is one rank, and every function here gives back what it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from trainer.errors import TrainingError

# A rank may wait this long for one that saves a checkpoint or builds a memory.
_PATIENCE = timedelta(hours=2)
# Rows of each rank that are on the device at once while arrays on the CPU are joined.
_STRETCH_ROWS = 16_384
# What `torchrun` tells a process, beside how many there are.
_TOLD = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


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
        return torch.cat([piece for _, piece in self._pieces(part, rows, 0, -(-rows // self.size))])

    def join_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        """As `join`, for arrays on the CPU; the device holds no more than a stretch of each share at once."""
        if self.size == 1:
            return part
        joined = np.empty((rows, *part.shape[1:]), part.dtype)
        for place, piece in self._stretches(part, rows, device):
            joined[place] = piece.cpu().numpy()
        return joined

    def collect(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        """As `join_arrays`, on the first rank; the others hold no rows."""
        if self.first:
            return self.join_arrays(part, rows, device)
        for _ in self._stretches(part, rows, device):
            pass
        nothing: np.ndarray = part[:0]
        return nothing

    def _stretches(self, part: np.ndarray, rows: int, device: str) -> Iterator[tuple[slice, Tensor]]:
        most = -(-rows // self.size)
        for start in range(0, most, _STRETCH_ROWS):
            stop = min(start + _STRETCH_ROWS, most)
            stretch = torch.from_numpy(np.ascontiguousarray(part[start:stop])).to(device)
            yield from self._pieces(stretch, rows, start, stop)

    def _pieces(self, stretch: Tensor, rows: int, start: int, stop: int) -> Iterator[tuple[slice, Tensor]]:
        """What stands from `start` to `stop` in each rank's share, and its place in the whole of `rows` rows."""
        padded = stretch.new_zeros((stop - start, *stretch.shape[1:]))  # shares may differ by one row
        padded[: len(stretch)] = stretch.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        for rank, part in enumerate(parts):
            first, last = self.bounds(rows, rank)
            place = slice(first + start, min(first + stop, last))
            yield place, part[: place.stop - place.start]

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

    def top_k(self, values: Float[Tensor, "query own"], k: int) -> Float[Tensor, "query top"]:
        """The k greatest of each row, of all ranks' own; differentiable on every rank.

        Args:
            values: The greatest of this rank, falling, k at most; other ranks may have more or fewer.
            k: How many to keep; where there are fewer, one that is alone keeps fewer, and several pad them with the
                least number that there is.
        """
        if self.size == 1:
            return values
        joined: Tensor = _Joined.apply(values, k)  # type: ignore[no-untyped-call]
        return joined.topk(k, dim=1).values

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

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the first one's numbers, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

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


class _Joined(torch.autograd.Function):
    """The columns of all ranks, each padded to k with what is no one's greatest; a column's gradient goes home."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, k: int) -> Tensor:
        padded = values.new_full((len(values), k), torch.finfo(values.dtype).min)
        padded[:, : values.shape[1]] = values
        parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, padded)
        ctx.start, ctx.columns = dist.get_rank() * k, values.shape[1]
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient[:, ctx.start : ctx.start + ctx.columns], None


@contextlib.contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the processes that `torchrun` started; alone when there are none.

    Raises:
        TrainingError: If something else than `torchrun` set how many there are, or there is no GPU for this one.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if missing := [name for name in _TOLD if name not in os.environ]:
        raise TrainingError(
            f"WORLD_SIZE={size}: expected {', '.join(_TOLD)} beside it, as torchrun sets them, found no "
            f"{', '.join(missing)}; start with torchrun, or unset WORLD_SIZE"
        )
    if device.startswith("cuda"):
        number, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= gpus:
            raise TrainingError(
                f"LOCAL_RANK={number}: expected a GPU for each process, found {gpus}; start "
                f"torchrun --nproc-per-node {gpus}, or use --device cpu"
            )
        torch.cuda.set_device(number)  # from here on "cuda" is this process's own
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
