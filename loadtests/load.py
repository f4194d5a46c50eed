"""Load generators: open loops with a given request rate, and closed loops.

An open loop sends requests at a constant rate. A latency counts from the time when the request was due, not from the
time when a connection was free to send it. So a stall of the server raises the latency of every request that was due
during the stall. A closed loop sends the next request when the last one is answered.
"""

from __future__ import annotations

import itertools
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# A late request is still sent until this long after the last request was due.
_GRACE_SECONDS = 1.0
_TIMEOUT_SECONDS = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
NEVER_SENT = "never sent"


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True)
class Exchange:
    """One request and its outcome.

    Attributes:
        number: Number of the request within the load.
        seconds: Time from when the request was due until its answer.
        status: Status of the answer; 0 if there is no answer.
        error: Short description of the error; empty if the status is 200.
    """

    number: int
    seconds: float
    status: int
    error: str


@dataclass(frozen=True)
class Load:
    """Requests for a server.

    Attributes:
        address: Address of the server.
        request: Returns the path and the body of a request by the request's number.
        api_key: API key of the requests; empty without one.
    """

    address: Address
    request: Callable[[int], tuple[str, bytes]]
    api_key: str = ""

    def send(self, connection: Connection, number: int, due: float) -> Exchange:
        """Send a request now."""
        request = self.request(number)
        try:
            try:
                status, body = connection.post(*request)
            except (ConnectionResetError, BrokenPipeError):  # the server may have closed an idle connection
                connection.close()
                status, body = connection.post(*request)
        except OSError as error:
            connection.close()
            return Exchange(number, time.perf_counter() - due, 0, f"lost: {error or type(error).__name__}")
        seconds = time.perf_counter() - due
        return Exchange(number, seconds, status, "" if status == 200 else f"{status}: {body[:200]!r}")


class Connection:
    """A connection that opens on first use. It costs less CPU time than `http.client`, which shares the server's cores.

    Args:
        load: The requests.
    """

    def __init__(self, load: Load) -> None:
        self._address = load.address
        self._socket: socket.socket | None = None
        key = f"X-API-Key: {load.api_key}\r\n" if load.api_key else ""
        self._headers = f"Host: {load.address.host}\r\nContent-Type: application/json\r\n{key}"

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of the answer.

        Raises:
            OSError: If there is no answer.
        """
        opened = self._socket = self._socket or socket.create_connection(self._address, _TIMEOUT_SECONDS)
        head = f"POST {path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        opened.sendall(head.encode() + body)
        answer = _receive(opened)
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += _receive(opened)
        length = _LENGTH.search(answer, 0, end)
        if length is None:
            raise OSError(f"expected an answer with Content-Length, found {answer[:200]!r}")
        start = end + 4
        while len(answer) < start + int(length[1]):
            answer += _receive(opened)
        return int(answer.split(b" ", 2)[1]), answer[start:]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _receive(opened: socket.socket) -> bytes:
    if not (received := opened.recv(1 << 16)):
        raise ConnectionResetError("the server closed the connection")
    return received


def open_loop(load: Load, rate: float, seconds: float, connections: int) -> list[Exchange]:
    """Send requests at a constant rate over a bounded pool of connections, whether or not earlier ones are answered.

    A request for which no connection is free in time gets the error `NEVER_SENT`.

    Args:
        load: The requests.
        rate: Requests per second.
        seconds: Duration.
        connections: Number of connections. If all of them are busy, the next request is sent late.
    """
    numbers, count = itertools.count(), round(rate * seconds)
    first = time.perf_counter() + 0.01  # so that the threads have started when the first request is due
    last = first + seconds + _GRACE_SECONDS
    exchanges: list[Exchange] = []

    def work(connection: Connection) -> None:
        while (number := next(numbers)) < count:
            due = first + number / rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            elif time.perf_counter() > last:
                exchanges.append(Exchange(number, 0.0, 0, NEVER_SENT))
                continue
            exchanges.append(load.send(connection, number, due))

    _run_on_connections(work, load, connections)
    return exchanges


def closed_loop(load: Load, clients: int, seconds: float = math.inf, requests: float = math.inf) -> list[Exchange]:
    """Run several clients. Each client sends its next request as soon as its last request is answered.

    Args:
        load: The requests.
        clients: Number of clients.
        seconds: Duration; unlimited by default.
        requests: Number of requests of all clients together; unlimited by default.
    """
    numbers, start = itertools.count(), time.perf_counter()
    exchanges: list[Exchange] = []

    def work(connection: Connection) -> None:
        while (now := time.perf_counter()) - start < seconds and (number := next(numbers)) < requests:
            exchanges.append(load.send(connection, number, now))

    _run_on_connections(work, load, clients)
    return exchanges


def latency_percentiles(exchanges: list[Exchange], *percents: float) -> list[float]:
    """Percentiles of the latency of answers with status 200, in milliseconds; 0 if there is no such answer."""
    answered = [exchange.seconds for exchange in exchanges if exchange.status == 200]
    return [round(1e3 * float(np.percentile(answered or [0.0], percent)), 3) for percent in percents]


def count_errors(*loads: list[Exchange]) -> int:
    """Number of lost requests, of requests that were never sent, and of answers with another status than 200."""
    return sum(bool(exchange.error) for exchanges in loads for exchange in exchanges)


def _run_on_connections(work: Callable[[Connection], None], load: Load, connections: int) -> None:
    """Call `work` in one thread for each connection, and wait for all threads."""

    def run() -> None:
        connection = Connection(load)
        try:
            work(connection)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
