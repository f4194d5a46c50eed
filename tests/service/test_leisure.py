"""Work at leisure rests between its steps while others are busy; other work never does."""

from __future__ import annotations

import pytest

from service import leisure
from service.leisure import at_leisure, leisurely, rest


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def work(seconds: float = 2.0) -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(leisure.time, "monotonic", work)  # each look at the clock is two seconds of work later
    monkeypatch.setattr(leisure.time, "sleep", sleep)
    return slept


def test_it_rests_nine_times_as_long_as_it_worked(slept: list[float]) -> None:
    with at_leisure(lambda: True):
        assert leisurely()
        rest()
        rest()
    assert slept == [18.0, 18.0]
    assert not leisurely()


def test_nobody_busy_nobody_rests(slept: list[float]) -> None:
    with at_leisure(lambda: False):
        rest()
    rest()
    assert slept == []
