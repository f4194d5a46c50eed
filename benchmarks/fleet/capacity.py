"""Capacity by arithmetic: cores and replicas for a rate, bytes of a memory, network, and the costs of changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.constants import Changes, Compute, Http, IndexCost, Indexes

_SECONDS_PER_DAY = 86_400


def query_ms(compute: Compute, http: Http, tokens: float) -> float:
    """CPU time of a query in a busy replica: event loop, encoding, search and votes, in full batches.

    Args:
        compute: Times of the predictor. Their texts are replaced with texts of `tokens` tokens.
        http: Times of the event loop.
        tokens: Number of tokens of the query.
    """
    full = compute.largest
    lengths = sorted(compute.encode_ms)
    times = [compute.encode_ms[length] for length in lengths]
    encode, measured = np.interp([tokens, compute.tokens], lengths, times)
    return float(http.single.loop.busy_ms + compute.size_ms(full) / full + encode - measured)


def cores(rate: float, milliseconds: float, utilisation: float) -> float:
    """Cores for a rate of queries, if they are busy for this share of the time."""
    return rate * milliseconds / 1e3 / utilisation


def replicas(rate: float, milliseconds: float, cores_each: int, utilisation: float, spare: int) -> int:
    """Replicas for a rate of queries, with spare ones that may be lost."""
    return math.ceil(cores(rate, milliseconds, utilisation) / cores_each) + spare


def network_bits(http: Http, rate: float, hops: int) -> float:
    """Bits a second of requests and answers over this many connections, for example client to nginx to replica."""
    return 8 * rate * hops * (http.request_bytes + http.answer_bytes)


def bundle_bytes(keys: float, cost: IndexCost, indexes: Indexes) -> float:
    """Size of a bundle with this index, if almost all keys are instances."""
    return keys * (cost.bytes_per_key + indexes.bytes_per_instance)


def most_keys(memory_bytes: float, cost: IndexCost, indexes: Indexes) -> float:
    """Keys of a bundle, of which two versions fit into four fifths of the memory of a replica."""
    return 0.8 * memory_bytes / (2 * bundle_bytes(1, cost, indexes))


def index_ms(cost: IndexCost, indexes: Indexes) -> float:
    """CPU time for each key to train and fill an index: the time of the build beyond that of exact search."""
    exact = next(each.build_cpu_seconds for each in indexes.costs if each.index == "Flat")
    return 1e3 * max(0.0, cost.build_cpu_seconds - exact) / cost.keys


@dataclass(frozen=True)
class Compaction:
    """Core hours of a compaction, by step."""

    merge: float
    index: float
    encode: float


def compaction(keys: float, cost: IndexCost, indexes: Indexes, changes: Changes, compute: Compute) -> Compaction:
    """The cost of a compaction; texts are encoded again if the index stores codes and the run is not given."""
    hours = keys / 3.6e6
    full = compute.largest
    encode = compute.size_ms(full, in_engine=True) / full
    return Compaction(hours * changes.compact_cpu_ms, hours * index_ms(cost, indexes), hours * encode)


@dataclass(frozen=True)
class LiveWrites:
    """The cost of live writes in a fleet.

    Attributes:
        cores: Cores that are busy with writes, over all replicas.
        log_gb_per_day: Growth of the log.
        full_after_hours: Time until a replica has the maximum number of live keys, and needs a compaction.
    """

    cores: float
    log_gb_per_day: float
    full_after_hours: float


def live_writes(rate: float, members: int, changes: Changes, delta_keys: int = 50_000) -> LiveWrites:
    """The cost of instances that are written at this rate; each replica applies each of them."""
    return LiveWrites(
        cores=rate * (changes.write_cpu_ms + (members - 1) * changes.follow_cpu_ms) / 1e3,
        log_gb_per_day=rate * changes.log_bytes * _SECONDS_PER_DAY / 1e9,
        full_after_hours=delta_keys / rate / 3600,
    )
