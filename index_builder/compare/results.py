"""Results of the contestants: the quality and training cost of each run, and their means over the seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.compare.plan import Contestant
from recollect.index_builder.compare.quality import Quality
from recollect.trainer.run_folder import RunFolder


@dataclass(frozen=True)
class RunResult:
    """Quality and cost of one run.

    Attributes:
        seed: Seed of the training.
        quality: Quality on the test split.
        measured: Seconds, peak memory and trainable parameters of the training; empty for the untrained encoder.
        learning: For each validation: seconds of training so far, and nDCG@5 on held-out instances.
    """

    seed: int
    quality: Quality
    measured: dict[str, float]
    learning: list[tuple[float, float]]

    @classmethod
    def of(cls, run: Path, seed: int, quality: Quality) -> RunResult:
        """Read the training cost from a run folder."""
        training = RunFolder(run).training() or {}
        return cls(seed, quality, training.get("measured") or {}, _learning_curve(run / "metrics.jsonl"))

    def as_json(self) -> dict[str, Any]:
        quality = {name: value for name, value in vars(self.quality).items() if name != "hits"}
        return {"seed": self.seed, **quality, "measured": self.measured, "learning": self.learning}


@dataclass(frozen=True)
class ContestantResults:
    """A contestant and the results of its runs, one for each seed."""

    contestant: Contestant
    runs: list[RunResult]

    @property
    def name(self) -> str:
        return self.contestant.name

    def mean_and_deviation(self, figure: Callable[[RunResult], float | None]) -> tuple[float, float] | None:
        """Mean and standard deviation of a figure over the runs; None if a run has no such figure."""
        found = [value for value in map(figure, self.runs) if value is not None]
        if len(found) < len(self.runs):
            return None
        return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0

    def mean(self, figure: Callable[[RunResult], float | None]) -> float | None:
        both = self.mean_and_deviation(figure)
        return both and both[0]

    def tuned(self, metric: str) -> float:
        """Mean of a metric over the runs. Each run has its own tuned settings."""
        return statistics.fmean(run.quality.tuned[metric] or 0.0 for run in self.runs)

    def scores(self, sizes: Int[np.ndarray, " query"]) -> dict[str, Float[np.ndarray, " query"]]:
        """The score of each query by each metric, averaged over the runs.

        Args:
            sizes: Number of true labels of each query.
        """
        by_run = [run.quality.scores(sizes) for run in self.runs]
        return {metric: np.mean([scores[metric] for scores in by_run], axis=0) for metric in by_run[0]}

    def as_json(self) -> dict[str, Any]:
        runs = [run.as_json() for run in self.runs]
        return {"name": self.name, "flags": list(self.contestant.own), "runs": runs}


def _learning_curve(path: Path) -> list[tuple[float, float]]:
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        (line["seconds"], line["validation_ndcg_5"])
        for line in lines
        if "validation_ndcg_5" in line and "seconds" in line
    ]
