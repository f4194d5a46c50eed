"""Training with several processes: each process (rank) takes a share of the rows and exchanges results.

`torchrun` starts the processes. Each rank encodes its share of a batch's queries and its share of the labels. NCCL
carries tensors between GPUs, gloo between CPUs. The training loss is the sum of the losses that the ranks compute.
Without `torchrun` there is one rank, and every function here returns its argument.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.trainer.errors import TrainerError, TrainingError

# Time limit of one exchange between ranks. Other ranks may wait in an exchange while rank 0 saves a checkpoint or
# writes a memory.
_TIMEOUT = timedelta(hours=2)
# Number of rows of each rank that are on the device at the same time when arrays in CPU memory are gathered.
_CHUNK_ROWS = 16_384
_NO_ROWS = np.empty(0, dtype=np.int64)
# Environment variables that `torchrun` sets besides WORLD_SIZE.
_TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Ranks:
    """The number of this process (from 0) and the number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is rank 0, which writes all files and messages."""
        return self.rank == 0

    def bounds(self, rows: int, rank: int | None = None) -> tuple[int, int]:
        """Return the start and the stop of a rank's share of `rows` rows.

        The sizes of shares differ by at most one row.
        """
        rank = self.rank if rank is None else rank
        return rows * rank // self.size, rows * (rank + 1) // self.size

    def share(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of an array that are this rank's share."""
        start, stop = self.bounds(len(rows))
        part: np.ndarray = rows[start:stop]
        return part

    def all_gather(self, part: Tensor, rows: int) -> Tensor:
        """Concatenate the shares of all ranks, on every rank. No gradient flows back."""
        if self.size == 1:
            return part
        return torch.cat([piece for _, piece in self._gather_pieces(part, rows, 0, -(-rows // self.size))])

    def all_gather_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        """Concatenate the shares of all ranks, for arrays in CPU memory.

        The device holds one chunk of each share at a time.
        """
        if self.size == 1:
            return part
        gathered = np.empty((rows, *part.shape[1:]), part.dtype)
        for place, piece in self._gather_chunks(part, rows, device):
            gathered[place] = piece.cpu().numpy()
        return gathered

    def _gather_chunks(self, part: np.ndarray, rows: int, device: str) -> Iterator[tuple[slice, Tensor]]:
        largest_share = -(-rows // self.size)
        for start in range(0, largest_share, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, largest_share)
            chunk = torch.from_numpy(np.ascontiguousarray(part[start:stop])).to(device)
            yield from self._gather_pieces(chunk, rows, start, stop)

    def _gather_pieces(self, chunk: Tensor, rows: int, start: int, stop: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield one chunk of every rank's share, and the place of the chunk in the whole array.

        A chunk is the rows `start` to `stop` of a share.
        """
        padded = chunk.new_zeros((stop - start, *chunk.shape[1:]))  # the sizes of shares may differ by one row
        padded[: len(chunk)] = chunk.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        for rank, part in enumerate(parts):
            first, last = self.bounds(rows, rank)
            place = slice(first + start, min(first + stop, last))
            yield place, part[: place.stop - place.start]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks. No gradient flows back."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total)
        return total

    def all_reduce_array(self, array: np.ndarray, device: str) -> np.ndarray:
        """Replace an array in CPU memory with its sum over the ranks, and return it.

        The device holds one chunk of rows at a time.
        """
        if self.size > 1:
            for start in range(0, len(array), _CHUNK_ROWS):
                chunk = torch.from_numpy(array[start : start + _CHUNK_ROWS]).to(device, copy=True)
                dist.all_reduce(chunk)
                array[start : start + _CHUNK_ROWS] = chunk.cpu().numpy()
        return array

    def all_reduce_max(self, values: Tensor) -> Tensor:
        """Return the maximum over the ranks. No gradient flows back."""
        if self.size == 1:
            return values
        maximum = values.detach().clone()
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
        return maximum

    def log_sum_exp(self, values: Float[Tensor, " query"]) -> Float[Tensor, " query"]:
        """Return log of the sum of e^value over the ranks. Gradients flow back on every rank."""
        if self.size == 1:
            return values
        parts: Tensor = _GatherColumns.apply(values[:, None], 1)  # type: ignore[no-untyped-call]
        return parts.logsumexp(dim=1)

    def top_k(self, values: Float[Tensor, "query own"], k: int) -> Float[Tensor, "query top"]:
        """Return the k greatest values of each row over all ranks. Gradients flow back on every rank.

        Args:
            values: This rank's greatest values, at most k, in descending order. The number of values may differ from
                rank to rank.
            k: Values to return. If all ranks together have fewer values, a single process returns fewer, and several
                processes pad the result with the smallest number of the data type.
        """
        if self.size == 1:
            return values
        columns: Tensor = _GatherColumns.apply(values, k)  # type: ignore[no-untyped-call]
        return columns.topk(k, dim=1).values

    def all_reduce_gradients(
        self, model: nn.Module, tables: Sequence[Tensor] = (), rows: Int[np.ndarray, " row"] = _NO_ROWS
    ) -> None:
        """Replace the gradients of a model with their sum over the ranks, in one exchange.

        Args:
            tables: Weights of the model whose gradients are 0 outside `rows`. Only these rows are exchanged.
        """
        if self.size == 1:
            return
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        for weight in weights:
            if weight.grad is None:  # a rank without rows has no gradient
                weight.grad = torch.zeros_like(weight)
        places = torch.from_numpy(rows).to(weights[0].device)
        gradients = [(weight.grad, any(weight is each for each in tables)) for weight in weights]
        parts = [gradient[places] if is_table else gradient for gradient, is_table in gradients if gradient is not None]
        flat = torch.cat([part.reshape(-1) for part in parts])
        dist.all_reduce(flat)
        totals = torch.split(flat, [part.numel() for part in parts])
        for (gradient, is_table), part, total in zip(gradients, parts, totals, strict=True):
            if gradient is not None:
                gradient[places if is_table else ...] = total.view_as(part)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors of every rank with the values of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def broadcast_object(self, value: Any) -> Any:
        """Return the value of rank 0, on every rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def compute_first(self, compute: Callable[[], _Value]) -> _Value:
        """Return what rank 0 computes, on every rank. A `TrainerError` there is raised on every rank."""
        result: _Value | TrainerError | None = None
        if self.first:
            try:
                result = compute()
            except TrainerError as error:
                result = error
        result = self.broadcast_object(result)
        if isinstance(result, TrainerError):
            raise result
        return cast(_Value, result)


ALONE = Ranks()


class _GatherColumns(torch.autograd.Function):
    """Concatenate the columns of all ranks. The gradient of a column returns to the rank that sent the column.

    Each rank's columns are padded to k columns with the smallest number of the data type.
    """

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


def is_first_rank() -> bool:
    """Whether this process is rank 0 of `torchrun`, or was started without `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("RANK") == "0"


def require_single_process(command: str) -> None:
    """Refuse to run a command in several processes that would write the same files.

    Raises:
        TrainingError: If `torchrun` started this process with others.
    """
    if (size := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise TrainingError(
            f"{command}: expected one process, found {size} (WORLD_SIZE); start it without torchrun, and train on "
            "several GPUs with `torchrun -m recollect train`"
        )


@contextlib.contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Join the processes that `torchrun` started. Without `torchrun`, yield a single rank.

    Raises:
        TrainingError: If WORLD_SIZE is set but the other variables of `torchrun` are not, or if there is no GPU for
            this process.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if missing := [name for name in _TORCHRUN_VARIABLES if name not in os.environ]:
        raise TrainingError(
            f"WORLD_SIZE={size}: expected {', '.join(_TORCHRUN_VARIABLES)} beside it, as torchrun sets them, found no "
            f"{', '.join(missing)}; start with torchrun, or unset WORLD_SIZE"
        )
    if device.startswith("cuda"):
        number, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= gpus:
            raise TrainingError(
                f"LOCAL_RANK={number}: expected a GPU for each process, found {gpus}; start "
                f"torchrun --nproc-per-node {gpus}, or use --device cpu"
            )
        torch.cuda.set_device(number)  # from now on "cuda" is this process's own GPU
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=_TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def check_shared_folder(folder: Path, ranks: Ranks, device: str) -> None:
    """Check that all ranks see the files that rank 0 writes into the run folder.

    Raises:
        TrainingError: On every rank, if one of them does not see a file of rank 0.
    """
    if ranks.size == 1:
        return
    path = folder / f".shared-{ranks.broadcast_object(secrets.token_hex(8))}"
    if ranks.first:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    ranks.broadcast_object(None)  # the other ranks wait until the file exists
    missing = int(ranks.all_reduce_array(np.array([not path.exists()], dtype=np.int64), device)[0])
    if ranks.first:
        path.unlink()
    if missing:
        raise TrainingError(
            f"--out {folder}: expected a folder that all hosts share, found that {missing} of {ranks.size} processes "
            "do not see the files of process 0; use shared storage"
        )


def check_same_dataset(folder: Path, sha256: str, ranks: Ranks, device: str) -> None:
    """Check that all ranks read the same labels and instances.

    Raises:
        TrainingError: On every rank, if the digests differ.
    """
    digest = np.frombuffer(bytes.fromhex(sha256), dtype=np.uint8)[None].copy()
    if (ranks.all_gather_arrays(digest, ranks.size, device) != digest).any():
        raise TrainingError(
            f"{folder}: expected the same dataset on all hosts, found different labels or instances; "
            "copy one dataset to all hosts"
        )
