"""Loads: who is due is sent and counted from then, whatever the server does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from loadtests import arrivals
from loadtests.arrivals import Exchange, Load, closed_loop, milliseconds, open_loop
from loadtests.client import Address
from tests.loadtests.stub import Said, stub

FINE = Said(200, {}, {"X-Index-Version": "v1"})


def load(address: Address, seen: Callable[[Exchange], Any], judge: Callable[..., str] = lambda nth, reply: "") -> Load:
    return Load(address, lambda nth: ("/predict", b'{"nth": %d}' % nth), judge, seen)


class Clock:
    """Time passes only while a load sleeps or a server works."""

    def __init__(self) -> None:
        self._now, self._lock = 0.0, threading.Lock()

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time that loads go by, independent of the machine."""
    clock = Clock()
    monkeypatch.setattr(arrivals, "time", clock)
    return clock


def test_an_open_loop_sends_every_request_that_is_due_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_PATIENCE_SECONDS", 60.0)  # however slow the machine is
    exchanges: list[Exchange] = []
    asked: list[int] = []

    def answer(body: dict[str, Any]) -> Said:
        asked.append(body["nth"])
        return FINE

    with stub(answer) as address:
        assert open_loop(load(address, exchanges.append), rate=200, seconds=0.2, connections=4) == 0
    assert sorted(asked) == list(range(40)) == sorted(exchange.nth for exchange in exchanges)
    assert {(exchange.status, exchange.version, exchange.error) for exchange in exchanges} == {(200, "v1", "")}


def test_latency_counts_from_when_a_request_was_due_not_from_when_a_connection_was_free(clock: Clock) -> None:
    exchanges: list[Exchange] = []

    def answer(body: dict[str, Any]) -> Said:
        clock.sleep(0.5 if body["nth"] == 0 else 0.01)
        return FINE

    with stub(answer) as address:
        open_loop(load(address, exchanges.append), rate=20, seconds=0.5, connections=1)
    by_number = sorted(exchanges, key=lambda exchange: exchange.nth)
    assert len(by_number) == 10
    # All were due while the only connection waited: each is charged for what was left of the stall.
    assert by_number[1].late_seconds > 0.4
    assert all(exchange.seconds >= exchange.late_seconds for exchange in by_number)
    assert by_number[1].late_seconds > by_number[5].late_seconds > by_number[9].late_seconds


def test_what_finds_no_connection_in_time_is_counted_as_never_sent(clock: Clock) -> None:
    exchanges: list[Exchange] = []
    both = threading.Barrier(2)

    def answer(body: dict[str, Any]) -> Said:
        both.wait(60)  # until every connection is taken
        clock.sleep(1.5)
        return FINE

    with stub(answer) as address:
        unsent = open_loop(load(address, exchanges.append), rate=100, seconds=0.1, connections=2)
    assert unsent == 8
    assert len(exchanges) == 2


def test_a_closed_loop_asks_as_often_as_it_may_over_all_clients() -> None:
    exchanges: list[Exchange] = []
    with stub(lambda body: FINE) as address:
        closed_loop(load(address, exchanges.append), clients=3, most=50)
    assert sorted(exchange.nth for exchange in exchanges) == list(range(50))


def test_a_request_without_an_answer_is_lost_and_the_load_goes_on() -> None:
    exchanges: list[Exchange] = []
    with stub(lambda body: Said(0, None) if body["nth"] == 3 else FINE) as address:
        closed_loop(load(address, exchanges.append), clients=1, most=6)
    assert [exchange.nth for exchange in exchanges if exchange.error] == [3]
    assert exchanges[3].error.startswith("lost: ")
    assert exchanges[3].status == 0


def test_a_server_that_is_not_there_loses_every_request() -> None:
    exchanges: list[Exchange] = []
    with stub(lambda body: FINE) as address:
        pass
    closed_loop(load(address, exchanges.append), clients=2, most=4)
    assert [exchange.error for exchange in exchanges] == ["lost: Connection refused"] * 4


def test_percentiles_are_of_good_answers_alone() -> None:
    exchanges = [Exchange(nth, nth / 1000, 0, 200, "v1", "") for nth in range(101)]
    exchanges += [Exchange(0, 9.0, 0, 503, "", "503 overloaded"), Exchange(0, 9.0, 0, 0, "", "lost: closed")]
    assert milliseconds(exchanges, 50, 99) == [50, 99]
    assert milliseconds([], 50) == [0]
