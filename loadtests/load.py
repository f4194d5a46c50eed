"""Load generators: open loops with a given request rate, and closed loops.

An open loop sends requests at a constant rate. A latency counts from the time when the request was due, not from the
time when a connection was free to send it. So a stall of the server raises the latency of every request that was due
during the stall. A closed loop sends the next request when the last one is answered.
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

# A late request is still sent until this long after the last request was due.
_GRACE_SECONDS = 1.0
NEVER_SENT = "never sent"


@dataclass(frozen=True)
class Exchange:
    """One request and its outcome.

    Attributes:
        number: Number of the request within the load.
        seconds: Time from when the request was due until its answer.
        status: Status of the answer; 0 if there is no answer.
        version: Version that the answer names.
        error: Short description of the error; empty if the answer is right.
    """

    number: int
    seconds: float
    status: int
    version: str
    error: str


@dataclass(frozen=True)
class Load:
    """Requests for a server, and a check of its answers.

    Attributes:
        address: Address of the server.
        request: Returns the path and the body of a request by the request's number.
        judge: Describes the error in an answer, from the request's number and the answer; empty if there is no error.
        record: Receives every exchange; called from many threads.
        api_key: API key of the requests; empty without one.
    """

    address: Address
    request: Callable[[int], tuple[str, bytes]]
    judge: Callable[[int, Reply], str]
    record: Callable[[Exchange], None]
    api_key: str = ""

    def send(self, connection: Connection, number: int, due: float) -> None:
        """Send a request now and record the exchange."""
        path, body = self.request(number)
        try:
            reply = connection.post(path, body)
        except LostRequestError as error:
            self.record(Exchange(number, time.perf_counter() - due, 0, "", f"lost: {error}"))
            return
        seconds = time.perf_counter() - due
        self.record(Exchange(number, seconds, reply.status, reply.version, self.judge(number, reply)))


def open_loop(load: Load, rate: float, seconds: float, connections: int) -> None:
    """Send requests at a constant rate over a bounded pool of connections, whether or not earlier ones are answered.

    A request for which no connection is free in time is recorded with the error `NEVER_SENT`.

    Args:
        load: Requests and their check.
        rate: Requests per second.
        seconds: Duration.
        connections: Number of connections. If all of them are busy, the next request is sent late.
    """
    numbers, count = itertools.count(), round(rate * seconds)
    first = time.perf_counter() + 0.01  # so that the threads have started when the first request is due
    last = first + seconds + _GRACE_SECONDS

    def work(connection: Connection) -> None:
        while (number := next(numbers)) < count:
            due = first + number / rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            elif time.perf_counter() > last:
                load.record(Exchange(number, 0.0, 0, "", NEVER_SENT))
                continue
            load.send(connection, number, due)

    _run_on_connections(work, load, connections)


def closed_loop(load: Load, clients: int, seconds: float = math.inf, requests: float = math.inf) -> float:
    """Run several clients. Each client sends its next request as soon as its last request is answered.

    Args:
        load: Requests and their check.
        clients: Number of clients.
        seconds: Duration; unlimited by default.
        requests: Number of requests of all clients together; unlimited by default.

    Returns:
        The duration in seconds.
    """
    numbers, start = itertools.count(), time.perf_counter()

    def work(connection: Connection) -> None:
        while (now := time.perf_counter()) - start < seconds and (number := next(numbers)) < requests:
            load.send(connection, number, now)

    _run_on_connections(work, load, clients)
    return time.perf_counter() - start


def latency_percentiles(exchanges: list[Exchange], *percents: float) -> list[float]:
    """Percentiles of the latency of answers with status 200, in milliseconds; 0 if there is no such answer."""
    answered = [exchange.seconds for exchange in exchanges if exchange.status == 200]
    return [round(1e3 * float(np.percentile(answered or [0.0], percent)), 3) for percent in percents]


def _run_on_connections(work: Callable[[Connection], None], load: Load, connections: int) -> None:
    """Call `work` in one thread for each connection, and wait for all threads."""

    def run() -> None:
        connection = Connection(load.address, api_key=load.api_key)
        try:
            work(connection)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
