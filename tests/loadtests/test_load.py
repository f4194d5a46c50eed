"""Load generators: a request is sent when it is due, and its latency counts from that time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loadtests import load as load_module
from loadtests.load import NEVER_SENT, Address, Load, closed_loop, open_loop
from tests.loadtests.stub import StubAnswer, stub

FINE = StubAnswer(200, {})


def make_load(address: Address) -> Load:
    return Load(address, lambda number: ("/predict", b'{"number": %d}' % number))


class Clock:
    """A clock whose time advances only while a load generator sleeps or the stub works."""

    def __init__(self) -> None:
        self._now, self._lock = 0.0, threading.Lock()

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the load generators, so that the tests do not depend on the machine's speed."""
    clock = Clock()
    monkeypatch.setattr(load_module, "time", clock)
    return clock


def test_open_loop_sends_every_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_GRACE_SECONDS", 60.0)  # even a slow machine then sends all requests
    received: list[int] = []

    def answer(body: dict[str, Any]) -> StubAnswer:
        received.append(body["number"])
        return FINE

    with stub(answer) as address:
        exchanges = open_loop(make_load(address), rate=200, seconds=0.2, connections=4)
    assert sorted(received) == list(range(40)) == sorted(exchange.number for exchange in exchanges)
    assert {(exchange.status, exchange.error) for exchange in exchanges} == {(200, "")}


def test_latency_counts_from_the_time_when_the_request_was_due(clock: Clock) -> None:

    def answer(body: dict[str, Any]) -> StubAnswer:
        clock.sleep(0.5 if body["number"] == 0 else 0.01)
        return FINE

    with stub(answer) as address:
        exchanges = open_loop(make_load(address), rate=20, seconds=0.5, connections=1)
    by_number = sorted(exchanges, key=lambda exchange: exchange.number)
    assert len(by_number) == 10
    # The first answer stalls the only connection while all other requests are due. So the latency of each request
    # includes the time until the end of the stall.
    assert by_number[1].seconds > 0.4
    assert by_number[1].seconds > by_number[5].seconds > by_number[9].seconds


def test_requests_that_find_no_free_connection_in_time_count_as_never_sent(clock: Clock) -> None:
    both = threading.Barrier(2)

    def answer(body: dict[str, Any]) -> StubAnswer:
        both.wait(60)  # until both connections are busy
        clock.sleep(1.5)
        return FINE

    with stub(answer) as address:
        exchanges = open_loop(make_load(address), rate=100, seconds=0.1, connections=2)
    assert len(exchanges) == 10
    assert [exchange.error for exchange in exchanges].count(NEVER_SENT) == 8


def test_load_continues_after_a_lost_request() -> None:
    with stub(lambda body: StubAnswer(0, None) if body["number"] == 3 else FINE) as address:
        exchanges = closed_loop(make_load(address), clients=1, requests=6)
    assert [exchange.number for exchange in exchanges if exchange.error] == [3]
    assert exchanges[3].error.startswith("lost: ")
    assert exchanges[3].status == 0
