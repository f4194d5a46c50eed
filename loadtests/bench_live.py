"""`python -m loadtests.bench_live --store STORE --add FILE`: cost of live entries for reads.

The benchmark serves two copies of the current version, without the answer cache. The second copy has the lines of a
file as live entries, written as `recollect extend` writes them. Both get the same requests, one after the other over
one connection, in short turns: single queries, and batches of 32. The queries are texts of the version. The last line
of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.client import Connection, LostRequestError
from loadtests.processes import cpu_model, cpu_seconds, steal_seconds
from loadtests.replica import Replica, ReplicaError, replica
from loadtests.swaps import copied_versions
from loadtests.workload import sample_texts
from recollect.service.command_settings import ExtendSettings
from recollect.service.errors import ServiceError
from recollect.service.extend import extend
from recollect.service.threads import ThreadBudget

_BATCH = 32
_TEXTS = 64 * _BATCH
# Requests of a turn, so that a turn has as many queries of each kind.
_TURN = {"query": _BATCH, "batch": 1}


@dataclass
class Cost:
    """The requests to one server: their latencies, and the CPU time of the server."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def as_json(self) -> dict[str, float]:
        return {
            "p50_ms": round(1e3 * float(np.median(self.seconds)), 3),
            "cpu_ms": round(1e3 * self.cpu_seconds / len(self.seconds), 3),
        }


def measure(store: Path, additions: Path, seconds: float, threads: int) -> dict[str, Any]:
    """Measure both copies.

    Args:
        store: The store.
        additions: The file with the live entries.
        seconds: Duration of the measurement of each kind of request.
        threads: Threads of each server.

    Raises:
        ServiceError, ReplicaError, LostRequestError: If the version cannot be served, or a request fails.
    """
    steal_before = steal_seconds()
    ThreadBudget.of(1, threads).apply()
    with copied_versions(store, 1) as (bundle_alone, versions), tempfile.TemporaryDirectory() as folder:
        with_live = Path(folder) / "store"
        shutil.copytree(bundle_alone.root, with_live)
        added = extend(ExtendSettings(store=str(with_live), add=additions), None)
        texts = sample_texts(bundle_alone.open(versions[0]).instances.texts, _TEXTS)
        batches = [texts[row : row + _BATCH] for row in range(0, len(texts), _BATCH)]
        bodies = {
            "query": [json.dumps({"query": text}).encode() for text in texts],
            "batch": [json.dumps({"queries": batch}).encode() for batch in batches],
        }
        with (
            replica(bundle_alone.root, cache_mb=0, threads=threads) as first,
            replica(with_live, cache_mb=0, threads=threads) as second,
        ):
            measured = {kind: _measure((first, second), kind, bodies[kind], seconds) for kind in bodies}
    return {
        "live_entries": added.instances + added.labels,
        **{
            kind: {
                "without": before.as_json(),
                "with": after.as_json(),
                "p50_ratio": round(float(np.median(after.seconds) / np.median(before.seconds)), 3),
                "cpu_ratio": round(after.cpu_seconds / before.cpu_seconds, 3) if before.cpu_seconds else None,
            }
            for kind, (before, after) in measured.items()
        },
        "steal_seconds": round(steal_seconds() - steal_before, 2),
        "cpu": cpu_model()[0],
    }


def _measure(servers: Sequence[Replica], kind: str, bodies: list[bytes], seconds: float) -> list[Cost]:
    path = "/predict" if kind == "query" else "/predict/batch"
    connections, costs = [Connection(server.address) for server in servers], [Cost() for _ in servers]
    turn, until = 0, time.monotonic() + seconds
    while turn < 2 or time.monotonic() < until:
        chosen = [bodies[number % len(bodies)] for number in range(turn * _TURN[kind], (turn + 1) * _TURN[kind])]
        for server, connection, cost in zip(servers, connections, costs, strict=True):
            cpu_before, latencies = cpu_seconds(server.process), []
            for body in chosen:
                start = time.perf_counter()
                reply = connection.post(path, body)
                latencies.append(time.perf_counter() - start)
                if reply.status != 200:
                    raise LostRequestError(f"{path}: expected status 200, found {reply.status}: {reply.body[:200]!r}")
            if turn:  # the first requests are slower
                cost.seconds += latencies
                cost.cpu_seconds += cpu_seconds(server.process) - cpu_before
        turn += 1
    for connection in connections:
        connection.close()
    return costs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_live", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is measured")
    parser.add_argument("--add", type=Path, required=True, help="live entries, as for `recollect extend --add`")
    parser.add_argument("--seconds", type=float, default=60, help="duration for each kind of request; default: 60")
    parser.add_argument("--threads", type=int, default=0, help="see `recollect serve`")
    given = parser.parse_args(arguments)
    if given.seconds <= 0:
        parser.error("expected a positive value of --seconds")
    try:
        print(json.dumps(measure(given.store, given.add, given.seconds, given.threads)))
    except (ServiceError, ReplicaError, LostRequestError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
