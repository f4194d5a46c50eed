"""The work of real replicas, sampled during a load."""

from __future__ import annotations

import json
import time
from typing import Any

from benchmarks.fleet.measurements.sampler import Sampler
from loadtests.client import Connection
from loadtests.replica import replica


def test_the_samples_have_all_queries_of_a_replica_until_it_ends(built: Any) -> None:
    with replica(built.store, cache_mb=0, threads=1) as server:
        connection = Connection(server.address)
        with Sampler([server]) as sampler:
            for number in range(10):
                connection.post("/predict", json.dumps({"query": f"tax on bread {number}"}).encode())
            sampler.sample()
            server.kill()
        connection.close()

    intervals = sampler.intervals()

    assert sum(interval.queries for interval in intervals) == 10
    assert 1 <= sum(interval.batches for interval in intervals) <= 10
    assert sum(interval.compute_seconds for interval in intervals) > 0
    assert all(interval.compute_seconds >= 0 for interval in intervals)


def test_each_query_counts_in_the_interval_in_which_it_was_computed(built: Any) -> None:
    with replica(built.store, cache_mb=0, threads=1) as server:
        connection = Connection(server.address)
        connection.post("/predict", b'{"query": "before the samples"}')
        with Sampler([server], step_seconds=0.4) as sampler:
            start = time.perf_counter()
            for queries in (10, 5):
                for number in range(queries):
                    body = json.dumps({"query": f"tax on bread {queries} {number}"})
                    connection.post("/predict", body.encode())
                time.sleep(1.2)
            seconds = time.perf_counter() - start
        connection.close()

    intervals = sampler.intervals()

    counts = [interval.queries for interval in intervals]
    first = counts.index(0)  # an interval between the groups
    assert (sum(counts[:first]), sum(counts[first:]), counts[-1]) == (10, 5, 0)
    assert sum(interval.compute_seconds for interval in intervals) < seconds
    ends = [interval.end for interval in intervals]
    assert ends == sorted(ends)
    assert ends[-1] >= seconds
