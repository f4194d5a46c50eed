"""Loads: open loops, whose requests arrive at a constant rate whatever the server does, and closed loops.

A latency counts from when its request was due, not from when a connection was free to send it: a server that stalls
is charged for all who would have asked meanwhile.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadtests.client import Address, Connection, LostRequestError, Reply

# How long after the last request was due those that found no connection are still sent.
_PATIENCE_SECONDS = 1.0


@dataclass(frozen=True)
class Exchange:
    """One request and what came of it.

    Attributes:
        nth: Which request of the load.
        seconds: From when it was due until it was answered.
        late_seconds: From when it was due until it was sent.
        status: Of the answer; 0 where none came.
        version: That the answer says it is from.
        error: What was wrong with it, in few words; empty where nothing was.
    """

    nth: int
    seconds: float
    late_seconds: float
    status: int
    version: str
    error: str


@dataclass(frozen=True)
class Load:
    """Where a load goes, what it asks, and how answers are judged.

    Attributes:
        address: Of the server.
        request: Path and body of the nth request.
        judge: What is wrong with the answer to the nth request; empty where nothing is.
        seen: Told of every exchange, from many threads.
    """

    address: Address
    request: Callable[[int], tuple[str, bytes]]
    judge: Callable[[int, Reply], str]
    seen: Callable[[Exchange], None]

    def exchange(self, connection: Connection, nth: int, due: float) -> None:
        """Send the nth request now and tell what came of it."""
        path, body = self.request(nth)
        late_seconds = time.perf_counter() - due
        try:
            reply = connection.post(path, body)
        except LostRequestError as error:
            self.seen(Exchange(nth, time.perf_counter() - due, late_seconds, 0, "", f"lost: {error}"))
            return
        seconds = time.perf_counter() - due
        self.seen(Exchange(nth, seconds, late_seconds, reply.status, reply.version, self.judge(nth, reply)))


def open_loop(load: Load, rate: float, seconds: float, connections: int) -> int:
    """Send requests at a constant rate over a bounded pool of connections.

    Args:
        load: What is sent where.
        rate: Requests a second.
        seconds: How long.
        connections: Requests at once; where all are taken, the next is sent late.

    Returns:
        How many were never sent, since no connection was free in time.
    """
    numbers, count = itertools.count(), round(rate * seconds)
    first = time.perf_counter() + 0.01  # none is due before there are threads
    last = first + seconds + _PATIENCE_SECONDS
    unsent: list[int] = []

    def work(connection: Connection) -> None:
        while (nth := next(numbers)) < count:
            due = first + nth / rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            elif time.perf_counter() > last:
                unsent.append(nth)
                continue
            load.exchange(connection, nth, due)

    _at_once(work, load.address, connections)
    return len(unsent)


def closed_loop(load: Load, clients: int, seconds: float = math.inf, most: float = math.inf) -> float:
    """Have clients ask, each again as soon as it is answered; for so long, or until they asked so often.

    Returns:
        How many seconds it took.
    """
    numbers, start = itertools.count(), time.perf_counter()

    def work(connection: Connection) -> None:
        while (now := time.perf_counter()) - start < seconds and (nth := next(numbers)) < most:
            load.exchange(connection, nth, now)

    _at_once(work, load.address, clients)
    return time.perf_counter() - start


def milliseconds(exchanges: list[Exchange], *percents: float) -> list[float]:
    """Percentiles of the latencies of what was answered 200; 0 where nothing was."""
    answered = [exchange.seconds for exchange in exchanges if exchange.status == 200]
    return [round(1e3 * float(np.percentile(answered or [0.0], percent)), 3) for percent in percents]


def _at_once(work: Callable[[Connection], None], address: Address, connections: int) -> None:
    """Run `work` on so many connections at once, until all are done."""

    def run() -> None:
        connection = Connection(address)
        try:
            work(connection)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
