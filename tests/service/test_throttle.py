"""The throttle slows down background work while requests arrive, and stops it when it is cancelled."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from service.store.store import Store
from service.versions import throttle
from service.versions.opening import Opener
from service.versions.throttle import CancelledWorkError, Throttle


class Clock(threading.Event):
    """A clock on which each reading is two seconds later than the reading before.

    A wait on this clock returns at once and records its length.
    """

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


def test_pause_sleeps_nine_times_as_long_as_the_step_took(clock: Clock) -> None:
    throttled = Throttle(lambda: True, clock)
    throttled.pause()
    throttled.pause()
    assert clock.waited[1:] == [18.0, 18.0]


def test_pause_does_not_sleep_while_no_request_arrives(clock: Clock) -> None:
    Throttle(lambda: False, clock).pause()
    assert sum(clock.waited) == 0


def test_pause_raises_an_error_if_the_work_is_cancelled(clock: Clock) -> None:
    clock.set()
    with pytest.raises(CancelledWorkError):
        Throttle(lambda: False, clock).pause()


def test_cancelled_opening_of_a_version_ends_with_an_error(built: Any) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CancelledWorkError):
        Opener(Store(built.store), threads=1).open(built.version, throttle=Throttle(lambda: False, cancelled))
