"""The throttle slows down background work while requests arrive, and stops it when it is cancelled."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from recollect.service.store.store import Store
from recollect.service.versions import opening
from recollect.service.versions.opening import CancelledWorkError, Opener, Throttle


class Cancelled(threading.Event):
    """An event whose waits return at once and are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self.is_set()


class Work:
    """Background work with a clock of its own. The loads are measured one after the other; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *loads: float) -> None:
        self.cpu_seconds, self.loads, self.cancelled = 100.0, [*loads], Cancelled()
        monkeypatch.setattr(opening.time, "thread_time", lambda: self.cpu_seconds)
        self.throttle = Throttle(lambda: self.loads.pop(0) if len(self.loads) > 1 else self.loads[0], self.cancelled)

    def step(self, seconds: float) -> list[float]:
        """Work for some seconds, then pause; return the waits of the pause."""
        self.cpu_seconds += seconds
        self.cancelled.waited.clear()
        self.throttle.pause()
        return [*self.cancelled.waited]


@pytest.mark.parametrize(("load", "rest"), [(0.0, 0.0), (0.25, 2.0), (0.5, 4.0)])
def test_pause_rests_in_proportion_to_the_load_and_to_the_cpu_time_of_the_step(
    monkeypatch: pytest.MonkeyPatch, load: float, rest: float
) -> None:
    work = Work(monkeypatch, load)
    assert work.step(2.0) == [rest]
    assert work.step(1.0) == [rest / 2]


def test_pause_waits_for_an_idle_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, 0.5, 1.0, 1.0, 0.5)
    assert work.step(1.0) == [2.0, 0.002, 0.002]


def test_pause_ends_even_if_no_thread_becomes_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    rest, *polls = Work(monkeypatch, 1.0).step(1.0)
    assert rest == 4.0
    assert sum(polls) == pytest.approx(0.02)


def test_short_steps_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, 0.5)
    assert work.step(0.0006) == [0.0]
    assert work.step(0.0006) == [pytest.approx(0.0024)]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_pause_raises_an_error_if_the_work_is_cancelled(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    work = Work(monkeypatch, 0.0)
    work.cancelled.set()
    with pytest.raises(CancelledWorkError):
        work.step(seconds)


def test_cancelled_opening_of_a_version_ends_with_an_error(built: Any) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CancelledWorkError):
        Opener(Store(built.store), threads=1).open(built.version, throttle=Throttle(lambda: 0.0, cancelled))
