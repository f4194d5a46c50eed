"""A claim of a paper, its measurement with several seeds, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Figures of one seed, by name.
Figures = dict[str, float]


@dataclass(frozen=True)
class Check:
    """One statement of a paper, as an order of two figures.

    Attributes:
        statement: The statement.
        larger: Name of the figure that must be larger, or a limit.
        smaller: Name of the figure that must be smaller, or a limit.
        paper: The figures of the paper; empty if no source of this project states them.
    """

    statement: str
    larger: str | float
    smaller: str | float
    paper: str = ""


@dataclass(frozen=True)
class Claim:
    """A table, a figure or an appendix of a paper, and its repetition on small data.

    Attributes:
        name: Argument of `python -m benchmarks.proofs`.
        source: Paper and place.
        summary: The claim in one sentence.
        conditions: The conditions of our measurement.
        measure: Measures the figures of one seed. The arguments are the dataset folder, None for random texts, a folder
            for the runs, and the seed.
        checks: The statements.
        uses_data: Whether the measurement needs a dataset.
    """

    name: str
    source: str
    summary: str
    conditions: str
    measure: Callable[[Path | None, Path, int], Figures]
    checks: tuple[Check, ...]
    uses_data: bool = True


@dataclass(frozen=True)
class Measurement:
    """The figures of all seeds on one dataset.

    Attributes:
        data: Name of the dataset.
        figures: The value of each seed, by name of the figure.
    """

    data: str
    figures: dict[str, list[float]]

    @classmethod
    def of(cls, data: str, by_seed: list[Figures]) -> Measurement:
        return cls(data, {name: [figures[name] for figures in by_seed] for name in by_seed[0]})

    def holds(self, check: Check) -> bool:
        """Whether the order of the two figures is as stated with every seed."""
        pairs = zip(self.values(check.larger), self.values(check.smaller), strict=True)
        return all(larger > smaller for larger, smaller in pairs)

    def values(self, figure: str | float) -> list[float]:
        """The values of a figure. A limit has the same value for every seed."""
        if isinstance(figure, str):
            return self.figures[figure]
        return [figure] * len(next(iter(self.figures.values())))


def read_measurements(path: Path) -> Iterator[Measurement]:
    """Read recorded measurements; none if the file is absent."""
    if path.is_file():
        for row in json.loads(path.read_text(encoding="utf-8")):
            yield Measurement(row["data"], row["figures"])


def record(path: Path, measured: list[Measurement]) -> None:
    """Write measurements to a file. They replace earlier measurements on the same data."""
    kept = {row.data: row for row in (*read_measurements(path), *measured)}
    rows = [vars(row) for _, row in sorted(kept.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
