"""`python -m loadtests.malformed --store STORE --requests 100000 --seed 1`: malformed requests to a real server.

Many connections send generated requests, while a separate process measures how long /health/live takes. The program
prints JSON. It exits with 1 if an answer has a status of 500 or more, if the server ends or does not answer a request
that it must answer, if its memory grows by more than --max-growth-mb, or if an answer of /health/live takes longer than
--max-stall-ms. Flags that the program does not know are passed to `recollect serve`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.client import Address
from loadtests.malformed.generate import Message, generate
from loadtests.malformed.probe import probing
from loadtests.processes import memory
from loadtests.replica import ReplicaError, replica
from recollect.service.errors import ServiceError

_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) ")  # not 100 Continue
# Maximum number of requests before the first measurement of memory, so that caches and allocator pools are full.
_WARMUP_REQUESTS = 3_000
_ANSWER_SECONDS = 30.0
# Time to wait for further answers on a connection after the first one.
_MORE_SECONDS = 0.02
_SHOWN = 10
# The generator has a lower priority than the service and the probe, so that a stall is the service's own and not a wait
# for one of the machine's cores.
_NICENESS = 10


class Tally:
    """The statuses of all answers, and the requests whose answer is a fault of the service; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_status: collections.Counter[str] = collections.Counter()
        self.by_kind: collections.Counter[str] = collections.Counter()
        self.faults: list[dict[str, Any]] = []

    def add(self, number: int, message: Message, statuses: list[str]) -> None:
        with self._lock:
            self.by_kind[message.kind] += 1
            self.by_status.update(statuses)
            for status in statuses:
                if status == "none" or status.startswith("5"):
                    sent = b"".join(message.parts)[:200].decode("latin-1")
                    self.faults.append({"number": number, "kind": message.kind, "status": status, "sent": sent})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.malformed", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is served")
    parser.add_argument("--requests", type=int, default=100_000, help="number of requests; default: 100000")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator; default: 0")
    parser.add_argument("--connections", type=int, default=16, help="number of connections at a time; default: 16")
    parser.add_argument("--max-stall-ms", type=float, help="maximum time of /health/live; default: no maximum")
    parser.add_argument("--max-growth-mb", type=float, default=50.0, help="maximum growth of memory; default: 50")
    options, serve_flags = parser.parse_known_args(arguments)
    tally = Tally()
    try:
        with replica(options.store, serve_flags) as server:
            warmup = min(_WARMUP_REQUESTS, options.requests // 4)
            _send_all(server.address, options.seed, range(warmup), options.connections, tally)
            before = memory(server.process).rss_mb
            start = time.monotonic()
            with probing(server.address) as probe:
                _send_all(server.address, options.seed, range(warmup, options.requests), options.connections, tally)
            seconds = time.monotonic() - start
            growth = round(memory(server.process).rss_mb - before, 1)
    except (ServiceError, ReplicaError) as error:
        parser.error(str(error))
    worst = max(probe.milliseconds, default=0.0)
    figures = {
        "requests": options.requests,
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "statuses": dict(sorted(tally.by_status.items())),
        "kinds": dict(sorted(tally.by_kind.items())),
        "faults": len(tally.faults),
        "first_faults": tally.faults[:_SHOWN],
        "probes": len(probe.milliseconds),
        "lost_probes": probe.lost,
        "stall_ms": {
            "p50": round(float(np.median(probe.milliseconds or [0.0])), 2),
            "p99_9": round(float(np.quantile(probe.milliseconds or [0.0], 0.999)), 2),
            "worst": round(worst, 2),
        },
        "rss_before_mb": before,
        "growth_mb": growth,
    }
    print(json.dumps(figures))
    is_slow = options.max_stall_ms is not None and worst > options.max_stall_ms
    return int(bool(tally.faults) or bool(probe.lost) or is_slow or growth > options.max_growth_mb)


def _send_all(address: Address, seed: int, numbers: range, connections: int, tally: Tally) -> None:
    """Send these requests over several connections at a time."""
    remaining, lock = iter(numbers), threading.Lock()

    def send() -> None:
        os.nice(_NICENESS)  # on Linux, for this thread only
        while True:
            with lock:
                number = next(remaining, None)
            if number is None:
                return
            message = generate(seed, number)
            tally.add(number, message, _exchange(address, message))

    threads = [threading.Thread(target=send, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _exchange(address: Address, message: Message) -> list[str]:
    """Send one message on a new connection, and return the statuses of the answers.

    Besides statuses: `closed` if the server closed the connection without an answer, and `none` if a request that must
    be answered got neither an answer nor the end of the connection.
    """
    received, is_closed = b"", False
    with socket.create_connection(address, timeout=_ANSWER_SECONDS) as connection:
        try:
            for part in message.parts:
                connection.sendall(part)
                if message.pause_seconds:
                    time.sleep(message.pause_seconds)
        except OSError:  # the server refused the request before its end
            is_closed = True
        try:
            while not _STATUS.search(received):
                connection.settimeout(_ANSWER_SECONDS if message.is_answered else _MORE_SECONDS)
                if not (chunk := connection.recv(1 << 16)):
                    is_closed = True
                    break
                received += chunk
            connection.settimeout(_MORE_SECONDS)
            while not is_closed and (chunk := connection.recv(1 << 16)):
                received += chunk
        except TimeoutError:
            pass
        except OSError:
            is_closed = True
    statuses = [status.decode() for status in _STATUS.findall(received)]
    if not statuses and message.is_answered:
        return ["closed" if is_closed else "none"]
    return statuses


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
