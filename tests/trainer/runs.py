"""Runs of `recollect train`: tests start them, kill them, and read their files."""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file
from torch import Tensor

import recollect
from tests import forked

PATIENCE_SECONDS = 120
KILLED = -signal.SIGKILL

LENGTHS = ["--max-length", 16, "--label-max-length", 8]
# Training uses 47 or all 60 instances of the lesson dataset, in 6 or 8 steps an epoch: 12 instances with labels and the
# one without labels are held out.
USUAL = [*LENGTHS, "--batch-size", 8, "--epochs", 3, "--validation-fraction", 0.2]
# Contents of a finished run folder, by the value of --train.
_ALWAYS_LEFT = {"checkpoint", "memory", "metrics.jsonl", "tensorboard", "training.json"}
LEFT = {"full": _ALWAYS_LEFT, "adapter": {*_ALWAYS_LEFT, "frozen"}}


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """Return the error message, which must be one line and the last line of the output."""
        lines = self.err.splitlines()
        assert sum(line.startswith("recollect train: ") for line in lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[-1]


Train = Callable[..., Outcome]


def untrained(arguments: Sequence[object]) -> list[object]:
    """The same command without a training, and without flags that only a training reads."""
    of_training = ("--batch-size", "--epochs", "--save-minutes", "--validation-fraction")
    kept = [each for before, each in itertools.pairwise((None, *arguments)) if not {before, each} & {*of_training}]
    return [*kept, "--epochs", 0]


def metrics(folder: Path, name: str) -> dict[int, float]:
    """Return one value of the log by step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[name] for line in lines if name in line}


def training(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return saved


def texts(folder: Path, name: str) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "memory" / name).read_text("utf-8").splitlines()]


def weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a checkpoint, including adapter and head."""
    found = load_file(folder / "checkpoint" / "model.safetensors")
    for above in ("adapter", "head"):
        path = folder / "checkpoint" / f"{above}.safetensors"
        if path.exists():
            found |= {f"{above}.{name}": weight for name, weight in load_file(path).items()}
    return found


def results(folder: Path) -> dict[str, bytes]:
    """Return the weights and keys of a run as bytes. Interruptions must not change these bytes."""
    paths = [*(folder / "checkpoint").glob("*.safetensors"), folder / "memory" / "keys.npy"]
    return {path.name: path.read_bytes() for path in paths}


class Moment(NamedTuple):
    """The moment before or after the n-th call of a function or method."""

    function: str
    call: int = 1
    after: bool = False


def run_recollect(arguments: Iterable[object], log: Path, killed: Moment | None = None, ranks: int = 1) -> list[int]:
    """Run `recollect` in one new process, or in several as `torchrun` does, and return their exit statuses.

    Args:
        arguments: The verb and its flags.
        log: File to which the output of the processes is appended.
        killed: When the process kills itself with SIGKILL.
        ranks: Number of processes.
    """
    words, port = [str(argument) for argument in arguments], _free_port() if ranks > 1 else 0
    program = "import json, sys; from tests.trainer.runs import run_rank; run_rank(*json.loads(sys.argv[1]))"
    with log.open("ab") as output:
        processes = [
            forked.Popen(
                [sys.executable, "-c", program, json.dumps([words, killed, [rank, ranks, port]])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            for rank in range(ranks)
        ]
    try:
        return [process.wait(PATIENCE_SECONDS) for process in processes]
    except subprocess.TimeoutExpired as late:
        raise AssertionError(log.read_text()) from late
    finally:
        for process in processes:
            process.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_rank(words: list[str], killed: tuple[str, int, bool] | None, group: tuple[int, int, int]) -> None:
    """Run `recollect` in this process, as one of several ranks: rank, number of ranks, port of the first rank."""
    import faiss
    import torch

    faulthandler.enable()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    if group[1] > 1:
        rank, ranks, port = map(str, group)
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if killed is not None:
        _kill_at(Moment(*killed))
    sys.exit(recollect.main(words))


def _kill_at(moment: Moment) -> None:
    name, _, attribute = moment.function.rpartition(".")
    owner = pkgutil.resolve_name(name)
    real, calls = getattr(owner, attribute), itertools.count(1)

    def killing(*arguments: Any, **options: Any) -> Any:
        last = next(calls) == moment.call
        if last and not moment.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, killing)
