"""The work of real replicas, sampled during a load."""

from __future__ import annotations

import json
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
