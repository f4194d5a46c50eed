from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.trainer.helpers import Clock
from trainer import stopwatch
from trainer.stopwatch import Stopwatch, peak_memory_bytes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


def test_shares_are_of_all_the_time_since_the_watch_was_made(clock: Clock) -> None:
    watch = Stopwatch()
    for name, seconds in (("mine", 1), ("gradient", 4), ("mine", 2)):
        with watch(name):
            clock.now += seconds
    clock.now += 3
    assert watch.shares() == pytest.approx({"mine": 0.3, "gradient": 0.4, "other": 0.3})
    assert watch.seconds == {"mine": 3, "gradient": 4}


def test_time_that_no_stretch_holds_is_other(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 2
    assert watch.shares() == {"other": 1}


def test_a_stretch_that_fails_counts_too(clock: Clock) -> None:
    watch = Stopwatch()

    def fail() -> None:
        with watch("save"):
            clock.now += 1
            raise ValueError("fault")

    with pytest.raises(ValueError, match="fault"):
        fail()
    assert watch.shares() == {"save": 1, "other": 0}


def test_shares_may_be_asked_for_as_often_as_wanted(clock: Clock) -> None:
    watch = Stopwatch()
    with watch("batch"):
        clock.now += 1
    assert watch.shares()["batch"] == 1
    clock.now += 1
    assert watch.shares() == {"batch": 0.5, "other": 0.5}


def test_peak_memory_is_at_least_what_is_held_now() -> None:
    now = Path("/proc/self/statm")
    if not now.is_file():
        pytest.skip("only Linux tells how much memory is held now")
    held = int(now.read_text().split()[1]) * resource.getpagesize()
    assert 0.99 * held < peak_memory_bytes() < 100 * held
