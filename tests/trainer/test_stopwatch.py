from __future__ import annotations

import resource
from pathlib import Path

import pytest

from recollect.trainer.training import stopwatch
from recollect.trainer.training.stopwatch import Stopwatch, peak_memory_bytes
from tests.trainer.helpers import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


def test_share_of_an_activity_is_its_fraction_of_the_time_since_the_stopwatch_was_created(clock: Clock) -> None:
    watch = Stopwatch()
    for name, seconds in (("mine", 1), ("gradient", 4), ("mine", 2)):
        with watch(name):
            clock.now += seconds
    clock.now += 3
    assert watch.shares() == pytest.approx({"mine": 0.3, "gradient": 0.4, "other": 0.3})
    assert watch.seconds == {"mine": 3, "gradient": 4}


def test_time_outside_activities_is_the_share_other(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 2
    assert watch.shares() == {"other": 1}


def test_activity_that_raises_an_error_is_measured(clock: Clock) -> None:
    watch = Stopwatch()

    def fail() -> None:
        with watch("save"):
            clock.now += 1
            raise ValueError("fault")

    with pytest.raises(ValueError, match="fault"):
        fail()
    assert watch.shares() == {"save": 1, "other": 0}


def test_shares_of_the_time_can_be_computed_repeatedly(clock: Clock) -> None:
    watch = Stopwatch()
    with watch("batch"):
        clock.now += 1
    assert watch.shares()["batch"] == 1
    clock.now += 1
    assert watch.shares() == {"batch": 0.5, "other": 0.5}


def test_peak_memory_is_at_least_the_memory_in_use_now() -> None:
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("needs /proc, which only Linux has")
    current = int(statm.read_text().split()[1]) * resource.getpagesize()
    assert 0.99 * current < peak_memory_bytes() < 100 * current
