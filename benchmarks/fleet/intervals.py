"""The work of the computing threads in the intervals of a load, and the speed of the machine that follows from it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Compute


class Interval(BaseModel):
    """The work of the computing threads of all replicas in an interval.

    Attributes:
        end: End of the interval, in seconds since the start of the load. It starts at the end of the one before.
        compute_seconds: CPU time.
        queries: Number of queries.
        batches: Number of batches.
    """

    model_config = ConfigDict(frozen=True)

    end: float
    compute_seconds: float
    queries: int
    batches: int

    def since(self, earlier: Interval) -> Interval:
        """The work after an earlier moment, if both are the work since the start."""
        return Interval(
            end=self.end,
            compute_seconds=self.compute_seconds - earlier.compute_seconds,
            queries=self.queries - earlier.queries,
            batches=self.batches - earlier.batches,
        )

    def merged_with(self, following: Interval) -> Interval:
        """The work of this interval and the following one."""
        return Interval(
            end=following.end,
            compute_seconds=self.compute_seconds + following.compute_seconds,
            queries=self.queries + following.queries,
            batches=self.batches + following.batches,
        )

    def relative_cpu_time(self, compute: Compute) -> float:
        """The CPU time of a batch, relative to the constant for its size; 0 without batches.

        A long queue makes the batches larger, so a slow machine can take as much CPU time for a query as a fast one.
        """
        if not self.batches:
            return 0.0
        return 1e3 * self.compute_seconds / self.batches / compute.size_ms(self.queries / self.batches)


def joined(intervals: Sequence[Interval], least: int) -> list[Interval]:
    """Join neighbouring intervals until each has at least this number of batches, if all together have them.

    A batch counts in the interval in which it begins, but a part of its CPU time may be that of the next one. So few
    batches make the figures of an interval inexact.
    """
    found: list[Interval] = []
    for interval in intervals:
        if found and found[-1].batches < least:
            found[-1] = found[-1].merged_with(interval)
        else:
            found.append(interval)
    if len(found) > 1 and found[-1].batches < least:
        last = found.pop()
        found[-1] = found[-1].merged_with(last)
    return found


class Slowness:
    """Factors by which tasks take longer, one for each interval; the last one holds until the end.

    Args:
        ends: Ends of the intervals, in seconds.
        factors: The factors.
    """

    def __init__(self, ends: Sequence[float], factors: Sequence[float]) -> None:
        self._ends, self._factors = ends, factors

    def at(self, seconds: float) -> float:
        return self._factors[min(bisect_right(self._ends, seconds), len(self._factors) - 1)]
