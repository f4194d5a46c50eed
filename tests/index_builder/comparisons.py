"""Helpers of the comparison tests: run `recollect compare`, and make results without training."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import recollect
from recollect.index_builder.compare.plan import Contestant
from recollect.index_builder.compare.quality import Quality
from recollect.index_builder.compare.results import ContestantResults, RunResult
from recollect.trainer.metrics import SEGMENTS

# Flags for 14 training steps: there are 28 instances, and at most one of them is held out.
SMALL_TRAINING = ["--max-length", 64, "--epochs", 2, "--batch-size", 4]


class Output(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def trained(self) -> list[str]:
        """Names of the runs that this command trained."""
        return [Path(line.partition("/memory: ")[0]).name for line in self.err.splitlines() if "written now" in line]


def run(*arguments: object) -> Output:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = recollect.main(["compare", *map(str, arguments)])
    return Output(status, out.getvalue(), err.getvalue())


def run_in_this_process(verb: str, *arguments: str) -> None:
    """Run a verb in the process of the test. `recollect compare` would run it in a separate process."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert recollect.main([verb, *arguments]) == 0


def results_of(name: str, ndcg: Sequence[float], seconds: float | None = None, **figures: Any) -> ContestantResults:
    """Make invented results: one run for each given nDCG@5. The run's other metrics are half of its nDCG@5."""
    names = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5", "R@100", *(f"F1@5 {segment}" for segment in SEGMENTS))
    runs = []
    for seed, score in enumerate(ndcg):
        tuned: dict[str, float | None] = {"nDCG@5": score, **dict.fromkeys(names, score / 2), "F1@5 head": None}
        curve = [{"lambda": lambda_, "P@1": score / 2, "nDCG@5": score - lambda_} for lambda_ in (0.0, 0.5, 1.0)]
        answering = {"lambda": 0.5, "temperature": 0.04, "top_b": 200, "label_key_alpha": 0.0}
        plain, ranked = tuned | {"nDCG@5": score - 1}, figures.get("ranked")
        quality = Quality(
            answering, tuned, plain, {}, ranked and tuned | ranked, curve, figures.get("hits", [128, 64, 0])
        )
        measured = {"seconds": (seconds or 0) + seed, "peak_memory_bytes": 2**29, "trainable_parameters": 1_234_567}
        learning = [(0.0, 1.0), (0.5, score / 2)]
        timed = seconds is not None
        runs.append(RunResult(seed, quality, measured if timed else {}, learning if timed else []))
    return ContestantResults(Contestant(name, ()), runs)
