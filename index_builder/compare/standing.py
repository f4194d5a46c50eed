"""Where a contestant stands: what each of its runs reached, what it cost, and both over all seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from index_builder.compare.contest import Contestant
from index_builder.compare.quality import Quality
from trainer.run_folder import RunFolder


@dataclass(frozen=True)
class Result:
    """What one run reached, and what it cost.

    Attributes:
        seed: Of its training.
        quality: On the test split.
        measured: Seconds, peak memory and trainable parameters of the training; empty where there was none.
        learning: Seconds of training and nDCG@5 on held-out instances, validation after validation.
    """

    seed: int
    quality: Quality
    measured: dict[str, float]
    learning: list[tuple[float, float]]

    @classmethod
    def of(cls, run: Path, seed: int, quality: Quality) -> Result:
        """Read what the training noted in its run folder."""
        training = RunFolder(run).training() or {}
        return cls(seed, quality, training.get("measured") or {}, _learning(run / "metrics.jsonl"))

    def as_json(self) -> dict[str, Any]:
        quality = {name: value for name, value in vars(self.quality).items() if name != "hits"}
        return {"seed": self.seed, **quality, "measured": self.measured, "learning": self.learning}


@dataclass(frozen=True)
class Standing:
    """A contestant with the results of all its seeds."""

    contestant: Contestant
    results: list[Result]

    @property
    def name(self) -> str:
        return self.contestant.name

    def spread(self, figure: Callable[[Result], float | None]) -> tuple[float, float] | None:
        """Mean and standard deviation of a figure over the seeds; None where a run lacks it."""
        found = [value for value in map(figure, self.results) if value is not None]
        if len(found) < len(self.results):
            return None
        return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0

    def mean(self, figure: Callable[[Result], float | None]) -> float | None:
        spread = self.spread(figure)
        return spread and spread[0]

    def tuned(self, metric: str) -> float:
        """A metric's mean, answered as tuned."""
        return statistics.fmean(result.quality.tuned[metric] or 0.0 for result in self.results)

    def scores(self, sizes: Int[np.ndarray, " query"]) -> dict[str, Float[np.ndarray, " query"]]:
        """Each query's metrics, averaged over the seeds."""
        of_seeds = [result.quality.scores(sizes) for result in self.results]
        return {metric: np.mean([scores[metric] for scores in of_seeds], axis=0) for metric in of_seeds[0]}

    def as_json(self) -> dict[str, Any]:
        runs = [result.as_json() for result in self.results]
        return {"name": self.name, "flags": list(self.contestant.own), "runs": runs}


def _learning(path: Path) -> list[tuple[float, float]]:
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        (line["seconds"], line["validation_ndcg_5"])
        for line in lines
        if "validation_ndcg_5" in line and "seconds" in line
    ]
