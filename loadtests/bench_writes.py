"""`python -m loadtests.bench_writes --store STORE`: latency of reads while the memory changes, and rate of writes.

The benchmark serves a copy of the current version, without the answer cache, and sends single queries at a constant
rate: alone, and while other connections insert instances at a constant rate, in turns. At last, several clients insert
instances as fast as they are answered. The queries and the texts of the instances are texts of the version. The server
encodes the texts of the instances. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadtests.load import Exchange, Load, closed_loop, count_errors, latency_percentiles, open_loop
from loadtests.processes import cpu_model
from loadtests.replica import ReplicaError, replica
from loadtests.swaps import copied_versions
from loadtests.texts import sample_texts
from recollect.core.errors import ServiceError
from recollect.core.system.threads import ThreadBudget

_TEXTS, _CONNECTIONS, _TURNS = 512, 16, 3
_KEY = "load-test-0123456789abcdef"


def measure(store: Path, seconds: float, reads: float, writes: float, threads: int) -> dict[str, Any]:
    """Measure the reads and the writes.

    Args:
        store: The store.
        seconds: Duration of each turn, and of the writes at the highest rate.
        reads: Queries per second.
        writes: Writes of one instance per second.
        threads: Threads of the server.

    Raises:
        ServiceError, ReplicaError, TimeoutError: If the store cannot be served.
    """
    ThreadBudget.of(1, threads).apply()
    with copied_versions(store, 1) as (copied, versions), tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write(f"loadtest {_KEY} write\n")
        keys.flush()
        bundle = copied.open(versions[0])
        texts, label = sample_texts(bundle.instances.texts, _TEXTS), bundle.labels.uids[0]
        flags = ["--writable", "--api-keys", keys.name, "--delta-keys", str(10_000_000)]
        with replica(copied.root, flags, cache_mb=0, threads=threads) as server:
            queries = [json.dumps({"query": text}).encode() for text in texts]
            instances = itertools.count()

            def instance(_: int) -> tuple[str, bytes]:
                number = next(instances)  # each write has a new instance
                row = {"uid": f"load-{number}", "text": texts[number % len(texts)], "labels": [label]}
                return "/memory/instances", json.dumps({"instances": [row]}).encode()

            reading = Load(server.address, lambda number: ("/predict", queries[number % len(queries)]), _KEY)
            writing = Load(server.address, instance, _KEY)
            open_loop(reading, reads, min(2.0, seconds), _CONNECTIONS)  # the first requests are slower
            alone, during, written = list[Exchange](), list[Exchange](), list[Exchange]()
            for _ in range(_TURNS):
                alone += open_loop(reading, reads, seconds, _CONNECTIONS)
                with ThreadPoolExecutor(1) as sender:
                    sent = sender.submit(open_loop, writing, writes, seconds, _CONNECTIONS)
                    during += open_loop(reading, reads, seconds, _CONNECTIONS)
                    written += sent.result()
            start = time.perf_counter()
            fastest = closed_loop(writing, _CONNECTIONS, seconds)
            duration = time.perf_counter() - start
    (p50, p99), (during_p50, during_p99) = (latency_percentiles(each, 50, 99) for each in (alone, during))
    write_p50, write_p99 = latency_percentiles(written, 50, 99)
    return {
        "reads": len(alone) + len(during),
        "writes": len(written),
        "p50_ms": p50,
        "p99_ms": p99,
        "during_writes_p50_ms": during_p50,
        "during_writes_p99_ms": during_p99,
        "p99_ratio": round(during_p99 / p99, 3) if p99 else None,
        "write_p50_ms": write_p50,
        "write_p99_ms": write_p99,
        "saturated_writes_per_second": round(len(fastest) / duration, 1),
        "errors": count_errors(alone, during, written, fastest),
        "cpu": cpu_model(),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_writes", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is measured")
    parser.add_argument("--seconds", type=float, default=20, help="duration of each of the seven loads; default: 20")
    parser.add_argument("--reads", type=float, default=20, help="queries per second; default: 20")
    parser.add_argument("--writes", type=float, default=10, help="written instances per second; default: 10")
    parser.add_argument("--threads", type=int, default=0, help="see `recollect serve`")
    given = parser.parse_args(arguments)
    if min(given.seconds, given.reads, given.writes) <= 0:
        parser.error("expected positive values of --seconds, --reads and --writes")
    try:
        print(json.dumps(measure(given.store, given.seconds, given.reads, given.writes, given.threads)))
    except (ServiceError, ReplicaError, TimeoutError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
