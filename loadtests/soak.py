"""`python -m loadtests.soak --store STORE --swaps 200 --requests 1000000`: memory of a server over time.

The soak test serves a copy of the store's current version, swaps versions, sends requests, and measures the memory of
all server processes again and again. It prints a table, and JSON in the last line. Flags that the soak test does not
know are passed to `recollect serve`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.load import Load, closed_loop, count_errors
from loadtests.processes import Memory, memory
from loadtests.replica import Replica, ReplicaError, replica
from loadtests.swaps import copied_versions, swap_to
from loadtests.texts import sample_texts, zipf_ranks
from recollect.core.errors import ServiceError
from recollect.store.store import Store

_QUERIES, _DRAWS, _CLIENTS = 5_000, 100_000, 16
# Number of requests after each swap, so that the new version is used, and number of requests before the first sample.
_REQUESTS_PER_SWAP, _WARMUP_REQUESTS = 50, 200
# Number of memory samples while requests are sent, and number of samples in the table.
_SAMPLES, _ROWS = 200, 10
# Share of the samples at the start that the slope leaves out, because caches and allocator pools fill up at first.
_WARMUP_SHARE = 0.2
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Sample:
    """A measurement.

    Attributes:
        done: Number of swaps or requests that are finished.
        memory: Memory of the server now.
        errors: Number of errors since the last sample.
    """

    done: int
    memory: Memory
    errors: int = 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is served")
    parser.add_argument("--swaps", type=int, default=200, help="number of swaps; default: 200")
    parser.add_argument("--requests", type=int, default=1_000_000, help="number of requests; default: 1000000")
    options, serve_flags = parser.parse_known_args(arguments)
    try:
        with (
            copied_versions(options.store, 3) as (store, versions),
            replica(store.root, serve_flags, poll_seconds=_POLL_SECONDS) as server,
        ):
            load = _load(server, store, versions)
            first_errors = count_errors(closed_loop(load, _CLIENTS, requests=_WARMUP_REQUESTS))
            swap_samples = list(_sample_swaps(server, store, versions, load, options.swaps))
            request_samples = list(_sample_requests(server, load, options.requests))
    except (ServiceError, ReplicaError, TimeoutError) as error:
        parser.error(str(error))
    _print_table("swaps", swap_samples)
    _print_table("requests", request_samples)
    figures = {"swaps": _figures(swap_samples, 100), "requests": _figures(request_samples, 100_000)}
    errors = first_errors + sum(sample.errors for sample in (*swap_samples, *request_samples))
    print(json.dumps(figures | {"errors": errors}))
    return int(bool(errors))


def _load(server: Replica, store: Store, versions: list[str]) -> Load:
    texts = sample_texts(store.open(versions[0]).instances.texts, _QUERIES)
    bodies = [json.dumps({"query": text}).encode() for text in texts]
    ranks = zipf_ranks(len(bodies), _DRAWS, 0)
    numbers = itertools.count()  # shared by all loops, so that each loop continues with new requests
    return Load(server.address, lambda _: ("/predict", bodies[ranks[next(numbers) % len(ranks)]]))


def _sample_swaps(server: Replica, store: Store, versions: list[str], load: Load, swaps: int) -> Iterator[Sample]:
    """Measure memory before the first swap, and after each swap and the requests that follow it."""
    yield Sample(0, memory(server.process))
    for done, version in zip(range(1, swaps + 1), itertools.cycle(reversed(versions)), strict=False):
        swap_to(store, version, server.address)
        exchanges = closed_loop(load, _CLIENTS, requests=_REQUESTS_PER_SWAP)
        yield Sample(done, memory(server.process), count_errors(exchanges))


def _sample_requests(server: Replica, load: Load, requests: int) -> Iterator[Sample]:
    """Measure memory before the first request, and then at equal distances until the last request."""
    ends = np.unique(np.linspace(0, requests, num=_SAMPLES + 1, dtype=int)).tolist()
    yield Sample(0, memory(server.process))
    for start, end in itertools.pairwise(ends):
        exchanges = closed_loop(load, _CLIENTS, requests=end - start)
        yield Sample(end, memory(server.process), count_errors(exchanges))


def _figures(samples: list[Sample], per: int) -> dict[str, Any]:
    """First memory, memory after the warm-up, last memory, and growth.

    The growth is the slope after the warm-up, in megabytes for every `per` swaps or requests.
    """
    settled = samples[int(_WARMUP_SHARE * len(samples)) :]
    done = np.array([sample.done for sample in settled], dtype=float)
    slopes = {}
    for name in ("rss_mb", "anonymous_mb"):
        megabytes = [getattr(sample.memory, name) for sample in settled]
        slopes[f"{name}_per_{per}"] = round(per * float(np.polyfit(done, megabytes, 1)[0]), 3)
    first, after_warmup, last = (each.memory._asdict() for each in (samples[0], settled[0], settled[-1]))
    return {"count": samples[-1].done, "first": first, "settled": after_warmup, "last": last} | slopes


def _print_table(name: str, samples: list[Sample]) -> None:
    """Print samples at equal distances to standard error, in megabytes."""
    print(f"{name:>12}" + "".join(f"{column:>14}" for column in Memory._fields), file=sys.stderr)
    for row in np.unique(np.linspace(0, len(samples) - 1, num=_ROWS, dtype=int)).tolist():
        sample = samples[row]
        print(f"{sample.done:12,}" + "".join(f"{megabytes:14,.1f}" for megabytes in sample.memory), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
