"""What several of the trainer's tests use: made-up vectors and label sets, stand-ins, and processes that get killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pkgutil
import signal
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import recollect
from trainer.dataset import LabelSets
from trainer.ranks import Ranks

PATIENCE_SECONDS = 120


def label_sets(rows: Iterable[Collection[int]]) -> LabelSets:
    kept = [sorted(row) for row in rows]
    pointers = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return LabelSets(pointers, np.array([label for row in kept for label in row], dtype=np.int32))


def random_sets(rng: np.random.Generator, instances: int, labels: int) -> list[set[int]]:
    """Instances with none, some or all of the labels."""
    shares = rng.choice([0, 0.1, 0.4, 1], size=instances)
    return [set(np.flatnonzero(rng.random(labels) < share).tolist()) for share in shares]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_units(rng: np.random.Generator, rows: int, dim: int = 8) -> np.ndarray:
    return unit(rng.standard_normal((rows, dim)))


def files(folder: Path) -> dict[str, bytes]:
    """All that a folder holds."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class OwnShare(Ranks):
    """One of several processes, which keeps its part to itself."""

    def join_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        return part


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Moment(NamedTuple):
    """Just before the n-th call of a function or method, or just after it."""

    function: str
    call: int = 1
    after: bool = False


# A server that has the trainer imported, and forks itself: each child is a process of its own that starts at once.
_children = multiprocessing.get_context("forkserver")
_children.set_forkserver_preload(["tests.trainer.helpers", "trainer.run"])


def run_recollect(arguments: Iterable[object], log: Path, killed: Moment | None = None, ranks: int = 1) -> list[int]:
    """Run `recollect` in a process of its own, or in several as `torchrun` would; gives their exit statuses.

    Args:
        arguments: The verb and its flags.
        log: Takes what the processes say, and what earlier ones said.
        killed: When the process kills itself, with the signal that nobody can catch.
        ranks: How many processes.
    """
    words, port = [str(argument) for argument in arguments], _free_port() if ranks > 1 else 0
    processes = [
        _children.Process(target=_run, args=(words, log, killed, (rank, ranks, port)), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(PATIENCE_SECONDS)
        statuses = [process.exitcode for process in processes]
        assert None not in statuses, log.read_text()
        return [int(status or 0) for status in statuses]
    finally:
        for process in processes:
            process.kill()


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _run(words: list[str], log: Path, killed: Moment | None, group: tuple[int, int, int]) -> None:
    import faiss
    import torch

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    if group[1] > 1:
        rank, ranks, port = map(str, group)
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if killed is not None:
        _die_at(killed)
    sys.exit(recollect.main(words))


def _die_at(moment: Moment) -> None:
    name, _, attribute = moment.function.rpartition(".")
    owner = pkgutil.resolve_name(name)
    real, calls = getattr(owner, attribute), itertools.count(1)

    def doomed(*arguments: Any, **options: Any) -> Any:
        last = next(calls) == moment.call
        if last and not moment.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, doomed)
