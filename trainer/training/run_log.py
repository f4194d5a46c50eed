"""The log of a training: a progress bar, `metrics.jsonl`, TensorBoard if it is installed, time and peak memory."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from recollect.core.system.console import progress_bar
from recollect.core.system.ram import process_memory
from recollect.trainer.training.training_state import Progress

_SECONDS_BETWEEN_LINES = 10


class RunLog:
    """The log of a running training. Only the first rank writes.

    `metrics.jsonl` holds one JSON object a line. A line has the field `step` and either `loss` (mean since the previous
    line), `learning_rate` and `examples_per_second`, or `validation_ndcg_5` (percent) and `seconds` (training time so
    far). A resumed run first removes the lines after its saved state.
    """

    def __init__(self, folder: Path, steps: int, progress: Progress, first: bool, max_seconds: float = 0.0) -> None:
        self._first, self._progress = first, progress
        self._steps, self._max_seconds = steps, max_seconds
        self._bar = progress_bar(steps, "step", "train", self._done(), shown=first, counts=not max_seconds)
        self._last_line = time.monotonic()
        self._reset_means()
        if first:
            path = folder / "metrics.jsonl"
            size = _size_up_to(path, progress.step)
            self._file = path.open("a", encoding="utf-8")
            self._file.truncate(size)
            self._board = _open_tensorboard(folder, progress.step)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if self._first:
            self._file.close()
            if self._board is not None:
                self._board.close()

    def step(self, loss: float, learning_rate: float, examples: int, seconds: float, last: bool) -> None:
        """Log a finished step. At most one line is written in ten seconds; the last step is always logged."""
        self._losses.append(loss)
        self._examples += examples
        self._seconds += seconds
        self._bar.update(self._done() - self._bar.n)
        if time.monotonic() - self._last_line < _SECONDS_BETWEEN_LINES and not last:
            return
        mean, rate = sum(self._losses) / len(self._losses), self._examples / self._seconds
        steps = f"step {self._progress.step:,}, " if self._max_seconds else ""
        self._bar.set_postfix_str(f"{steps}loss {mean:.3f}, {rate:,.0f} examples/s", refresh=False)
        self.write(loss=mean, learning_rate=learning_rate, examples_per_second=rate)
        self._last_line = time.monotonic()
        self._reset_means()

    def write(self, **values: float) -> None:
        """Add a line to `metrics.jsonl`, and the values to TensorBoard."""
        if not self._first:
            return
        step = self._progress.step
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def _done(self) -> int:
        """The number of finished steps. With a time limit, the share of the time counts if it is larger."""
        step, seconds = self._progress.step, self._progress.seconds
        if self._max_seconds:
            step = max(step, int(self._steps * min(1.0, seconds / self._max_seconds)))
        return step

    def _reset_means(self) -> None:
        self._losses: list[float] = []
        self._examples, self._seconds = 0, 0.0


def _size_up_to(path: Path, step: int) -> int:
    """Size in bytes of the lines up to and including `step`."""
    if not path.is_file() or step == 0:
        return 0
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError, TypeError):  # an incomplete line of a killed process
            break
        size += len(line)
    return size


def _open_tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)  # a resumed run repeats these steps


class Stopwatch:
    """Measures the total time of each named activity: `with watch("mine"): ...`."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start

    def shares(self) -> dict[str, float]:
        """The share of each activity in the time since the stopwatch was created; `other` is the rest."""
        total = time.monotonic() - self._started
        shares = {name: seconds / total for name, seconds in self.seconds.items()}
        return shares | {"other": 1.0 - sum(shares.values())}


def peak_memory_bytes() -> int:
    """Peak CPU memory of this process so far."""
    if (memory := process_memory()) is not None:  # the peak of `getrusage` includes the parent process
        return memory.peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB on Linux


def peak_gpu_memory_bytes() -> int:
    """Peak of the memory that this process has allocated on its GPU so far; 0 without a GPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
