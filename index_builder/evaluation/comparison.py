"""`recollect evaluate --compare`: two versions on the same test texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recollect.index_builder.evaluation.measured import Measured, differences

_PRINTED = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")


@dataclass(frozen=True)
class Comparison:
    """A version, and another one with its own default options.

    Attributes:
        version: The other version.
        measured: The measurement of the first version.
        other: The measurement of the other version.
    """

    version: str
    measured: Measured
    other: Measured

    @cached_property
    def differences(self) -> dict[str, Any]:
        """Each metric of the first version minus that of the other one, and the ends of their intervals."""
        return differences(self.measured.metrics, self.other.metrics)

    def as_json(self) -> dict[str, Any]:
        return {"version": self.version, "row": self.other.row(), "differences": self.differences}


def format_comparison(comparison: dict[str, Any]) -> Iterator[str]:
    """Format the differences of the most important metrics, from `Comparison.as_json`."""
    gains, row = comparison["differences"], comparison["row"]
    yield f"compared with {comparison['version']}, with its default options:"
    for name in _PRINTED:
        low, high = gains["intervals"][name]
        yield f"  {name:8} {row[name]:6.2f}, difference {gains[name]:+.2f} (95% interval {low:+.2f} to {high:+.2f})"
