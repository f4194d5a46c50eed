"""`python -m loadtests.soak --store STORE --swaps 200 --requests 1000000`: whether memory stays flat.

A copy of the current version is served, swapped so often and asked so often; the memory of all processes of the server
is sampled meanwhile. Prints JSON and draws a plot. Further flags go to `recollect serve`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.arrivals import Exchange, Load, closed_loop
from loadtests.opened import memory_with
from loadtests.processes import Memory, memory
from loadtests.replica import Replica, ReplicaError, replica, two_versions
from loadtests.storm import swap_to
from loadtests.workload import spread, zipf
from service.errors import ServiceError
from service.store.store import Store

_QUERIES, _DRAWS, _CLIENTS = 5_000, 100_000, 16
# Requests after each swap, so that what was swapped to is used; before any; samples of memory over all requests.
_ASKED_A_SWAP, _WARMING, _SAMPLES = 50, 200, 200
# What fills caches and the allocator's pools is no leak: the slope is of what comes later.
_SETTLED = 0.2
_POLL_SECONDS = 0.1

# How often something was done so far, and memory then.
Samples = list[tuple[int, Memory]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store; its current version is served")
    parser.add_argument("--swaps", type=int, default=200, help="how many; 200 unless told")
    parser.add_argument("--requests", type=int, default=1_000_000, help="how many; a million unless told")
    parser.add_argument("--plot", type=Path, default=Path("soak.png"), help="where to draw; soak.png unless told")
    given, flags = parser.parse_known_args(arguments)
    errors: list[str] = []
    try:
        with two_versions(given.store) as (store, versions):
            open_at_once = [memory_with(store.root, versions[:count]) for count in range(3)]
            with replica(store.root, flags, poll_seconds=_POLL_SECONDS) as server:
                load = _load(server, store, versions, errors)
                closed_loop(load, _CLIENTS, most=_WARMING)
                swapping = list(_swapping(server, store, versions, load, given.swaps))
                asking = list(_asking(server, load, given.requests))
    except (ServiceError, ReplicaError, TimeoutError) as error:
        parser.error(str(error))
    _plot(given.plot, {"swaps": swapping, "requests": asking})
    figures = {
        "swaps": _figures(swapping, 100),
        "requests": _figures(asking, 100_000),
        "open_at_once": _open_at_once(open_at_once),
        "errors": len(errors),
    }
    print(json.dumps(figures))
    return int(bool(errors))


def _load(server: Replica, store: Store, versions: list[str], errors: list[str]) -> Load:
    texts = spread(store.open(versions[0]).instance_texts, _QUERIES)
    bodies = [json.dumps({"query": text}).encode() for text in texts]
    order = zipf(len(bodies), _DRAWS, 0)
    numbers = itertools.count()  # goes on from one loop to the next

    def request(nth: int) -> tuple[str, bytes]:
        return "/predict", bodies[order[next(numbers) % len(order)]]

    def seen(exchange: Exchange) -> None:
        if exchange.status != 200:
            errors.append(exchange.error or str(exchange.status))

    return Load(server.address, request, lambda nth, reply: "", seen)


def _swapping(
    server: Replica, store: Store, versions: list[str], load: Load, swaps: int
) -> Iterator[tuple[int, Memory]]:
    """Memory before any swap and after each, with requests after each."""
    yield 0, memory(server.process)
    for done, version in zip(range(1, swaps + 1), itertools.cycle(reversed(versions)), strict=False):
        swap_to(store, version, server.address)
        closed_loop(load, _CLIENTS, most=_ASKED_A_SWAP)
        yield done, memory(server.process)


def _asking(server: Replica, load: Load, requests: int) -> Iterator[tuple[int, Memory]]:
    """Memory before any request and after each of many equal parts."""
    yield 0, memory(server.process)
    done = 0
    for end in np.linspace(0, requests, num=_SAMPLES + 1, dtype=int)[1:].tolist():
        if end > done:
            closed_loop(load, _CLIENTS, most=end - done)
            done = end
            yield done, memory(server.process)


def _figures(samples: Samples, per: int) -> dict[str, Any]:
    """First and last memory, and by how many megabytes it grows for each `per`, once it has settled."""
    settled = samples[int(_SETTLED * len(samples)) :]
    done = np.array([count for count, _ in settled], dtype=float)
    slopes = {}
    for name in ("rss_mb", "anonymous_mb"):
        megabytes = [getattr(sample, name) for _, sample in settled]
        slopes[f"{name}_per_{per}"] = round(per * float(np.polyfit(done, megabytes, 1)[0]), 3)
    before, first, last = (dataclasses.asdict(sample) for _, sample in (samples[0], settled[0], settled[-1]))
    return {
        "count": samples[-1][0],
        "first": dataclasses.asdict(samples[0][1]),
        "settled": first,
        "last": last,
    } | slopes


def _open_at_once(memories: list[Memory]) -> dict[str, float]:
    """What one version and two cost a process beyond its libraries."""
    none, one, two = memories
    figures: dict[str, float] = {}
    for name in ("rss_mb", "anonymous_mb"):
        cost_one, cost_two = (getattr(each, name) - getattr(none, name) for each in (one, two))
        ratio = round(cost_two / cost_one, 2) if cost_one else 0.0
        figures |= {f"one_{name}": round(cost_one, 1), f"two_{name}": round(cost_two, 1), f"ratio_{name}": ratio}
    return figures


def _plot(path: Path, series: dict[str, Samples]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(series), figsize=(6 * len(series), 4), sharey=True, squeeze=False)
    for axis, (name, samples) in zip(axes[0], series.items(), strict=True):
        for field in dataclasses.fields(Memory):
            megabytes = [getattr(sample, field.name) for _, sample in samples]
            axis.plot([count for count, _ in samples], megabytes, label=field.name.removesuffix("_mb"))
        axis.set(xlabel=name, ylim=(0, None))
    axes[0][0].set_ylabel("MB")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
