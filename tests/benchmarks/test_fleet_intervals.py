"""The work of the computing threads in intervals, and the speed that follows from it."""

from __future__ import annotations

import pytest

from benchmarks.fleet.intervals import Interval, Slowness, joined


def interval(end: float, batches: int, queries: int = 100) -> Interval:
    return Interval(end=end, compute_seconds=0.5, queries=queries, batches=batches)


@pytest.mark.parametrize(
    ("batches", "ends"),
    [
        ([50, 60, 70], [1, 2, 3]),
        ([20, 20, 20, 30, 30], [3, 5]),
        ([60, 60, 5], [1, 3]),
        ([5, 5, 5], [3]),
        ([60], [1]),
        ([], []),
    ],
)
def test_neighbouring_intervals_with_few_batches_are_joined(batches: list[int], ends: list[float]) -> None:
    found = joined([interval(end, each) for end, each in enumerate(batches, start=1)], least=50)

    assert [each.end for each in found] == ends
    assert sum(each.batches for each in found) == sum(batches)
    assert sum(each.queries for each in found) == 100 * len(batches)
    assert sum(each.compute_seconds for each in found) == 0.5 * len(batches)


def test_each_factor_holds_until_the_end_of_its_interval_and_the_last_one_until_the_end() -> None:
    slowness = Slowness([1, 3], [0.9, 1.2])

    assert [slowness.at(seconds) for seconds in (0, 0.99, 1, 2.9, 3, 100)] == [0.9, 0.9, 1.2, 1.2, 1.2, 1.2]
