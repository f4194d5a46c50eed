"""Work at leisure rests between its steps while others are busy; other work never does."""

from __future__ import annotations

import threading

import pytest

from service.versions import throttle
from service.versions.throttle import AbandonedError, at_leisure, leisurely, rest


class Clock(threading.Event):
    """Each look at it is two seconds of work later; it waits at once, and remembers how long."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.waited = 100.0, [0.0]

    def monotonic(self) -> float:
        self.now += 2.0
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self.now += timeout or 0.0
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throttle.time, "monotonic", clock.monotonic)
    return clock


def test_it_rests_nine_times_as_long_as_it_worked(clock: Clock) -> None:
    with at_leisure(lambda: True, clock):
        assert leisurely()
        rest()
        rest()
    assert clock.waited[1:] == [18.0, 18.0]
    assert not leisurely()


def test_nobody_busy_nobody_rests(clock: Clock) -> None:
    with at_leisure(lambda: False, clock):
        rest()
    rest()
    assert sum(clock.waited) == 0


def test_what_need_not_be_done_any_more_is_given_up(clock: Clock) -> None:
    clock.set()
    with pytest.raises(AbandonedError), at_leisure(lambda: False, clock):
        rest()
