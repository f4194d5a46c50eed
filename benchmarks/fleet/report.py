"""The tables of docs/scaling.md. The text of the page is in page.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from string import Template

import numpy as np

from benchmarks.fleet import capacity
from benchmarks.fleet.constants import Changes, Compute, Drift, Http, Indexes, Swap
from benchmarks.fleet.measurements.service import Figures, ServiceFigures
from benchmarks.fleet.records import read
from benchmarks.fleet.simulation.scenarios import Scenarios
from benchmarks.fleet.validation import MOST_STOLEN, Pair, Spread, Validation

_TEMPLATE = Path(__file__).parent / "page.md"
_ACCEPTED = 0.15
_UTILISATION, _CORES, _SPARE = 0.6, 4, 1
_LARGE, _MEMORY_GB, _LINK_GB_PER_SECOND = 500e6, (64, 256), 1.25
_FLEET = 100
_MEAN_PAUSES_MS = (2.5, 5, 10)
_NAMES = {"compute_ms": "CPU of a query, ms", "answered": "answers/s", "p50": "p50, ms", "p99": "p99, ms"}


def page() -> str:
    """The page, from the recorded figures.

    Raises:
        OSError: If a record is missing.
    """
    minilm, static = read(Compute, "compute-minilm"), read(Compute, "compute-static")
    indexes, swap, changes = read(Indexes, "indexes"), read(Swap, "swap"), read(Changes, "changes")
    http = read(Http, "http").at(minilm.reference_ms)
    validation, scenarios = read(Validation, "validation"), read(Scenarios, "scenarios")
    service, two = read(ServiceFigures, "service-1"), read(ServiceFigures, "service-2")
    drift = read(Drift, "drift")
    records = (minilm, static, drift, http, indexes, swap, changes, service, two)
    tables = {
        "machine": minilm.machine,
        "dates": " and ".join(sorted({each.date for each in records})),
        "batches": _batches(minilm, static),
        "pauses": _pauses(http),
        "http": _http(http),
        "waits": _waits(http),
        "lock_share": _lock_share(http),
        "refused_ms": f"{http.single.refused.loop_ms:.2f}",
        "refused_twice_ms": f"{http.proxied.refused.loop_ms:.2f}",
        "request_bytes": f"{http.request_bytes:,.0f}",
        "answer_bytes": f"{http.answer_bytes:,.0f}",
        "idle_single": f"{http.single.idle_cores:.1%}",
        "idle_proxied": f"{http.proxied.idle_cores:.1%}",
        "queries": _queries(minilm, static, http),
        "replicas": _replicas(minilm, static, http),
        "network": _network(http),
        "indexes": _indexes(indexes),
        "changes": _changes(swap, changes),
        "large": _large(indexes, swap, changes, minilm),
        "fleet": f"{_FLEET}",
        "writes": _writes(changes),
        "seconds": f"{service.seconds:g}",
        "constant_ms": f"{minilm.reference_ms:.0f}",
        "speeds": _range([figures.reference_ms for each in (service, two) for figures in each.figures]),
        "most_stolen": f"{MOST_STOLEN:.0%}",
        "counted": _counted([figures for each in (service, two) for figures in each.figures]),
        "summary": _summary(validation),
        "repetitions": f"{sum(figures.rate is None for figures in service.figures)}",
        "validation": _validation(validation),
        "verdict": _verdict(validation.pairs),
        "scenarios": _scenarios(scenarios),
        "capacity": f"{scenarios.capacity:,.0f}",
        "engine_capacity": f"{scenarios.engine_capacity:,.0f}",
        "engine_capacity_few_threads": f"{scenarios.engine_capacity_few_threads:,.0f}",
        "cached_capacity": f"{scenarios.cached_capacity:,.0f}",
        "others": f"{max(each.others for each in records):.1%}",
        "slowdown": f"{minilm.slowdown:.2f}",
        "drift": _drift(drift),
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(tables)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _range(numbers: Iterable[float]) -> str:
    ordered = sorted(numbers)
    return f"{ordered[0]:.0f} to {ordered[-1]:.0f}"


def _batches(*computes: Compute) -> str:
    sizes = sorted(computes[0].batch_ms)
    head = ["encoder", *(f"batch of {size}" for size in sizes)]
    rows = [[each.encoder, *(f"{each.size_ms(size):.2f}" for size in sizes)] for each in computes]
    return _table(head, rows)


def _pauses(http: Http) -> str:
    pauses = sorted(http.alone_ms)
    head = ["pause", *(f"{pause} ms" for pause in pauses)]
    return _table(head, [["CPU of a title, ms", *(f"{http.alone_ms[pause]:.2f}" for pause in pauses)]])


def _waits(http: Http) -> str:
    rows = [
        ("one replica", http.single.wait_ms),
        ("the same beside a busy core", http.single.busy_wait_ms),
        ("two replicas behind nginx", http.proxied.wait_ms),
        ("the same beside a busy core", http.proxied.busy_wait_ms),
    ]
    head = ["waits, ms", "median", "90th percentile", "99th percentile"]
    return _table(head, [[name, *(f"{waits[percent]:.1f}" for percent in (50, 90, 99))] for name, waits in rows])


def _lock_share(http: Http) -> str:
    sizes = sorted(http.lock_share)
    head = ["", *(f"batch of {size}" for size in sizes)]
    return _table(head, [["waits / CPU time of the event loop", *(f"{http.lock_share[size]:.2f}" for size in sizes)]])


def _drift(drift: Drift) -> str:
    low, high = (100 * float(np.percentile(drift.slowness, percent)) for percent in (5, 95))
    return f"{low:.0f} to {high:.0f}% of their mean CPU time, in nine tenths of the steps of {drift.step_seconds:.1f} s"


def _http(http: Http) -> str:
    costs = {
        "event loop of the service": http.single.loop,
        "the same for an answer from the cache": http.cached_loop,
        "the same with two replicas": http.proxied.loop,
        "nginx, with two replicas": http.proxied.proxy,
        "load generator, with one replica": http.single.client,
        "load generator, with two replicas": http.proxied.client,
    }
    rows = [
        [name, f"{cost.busy_ms:.2f}", *(f"{cost.after(pause):.2f}" for pause in _MEAN_PAUSES_MS)]
        for name, cost in costs.items()
    ]
    head = ["CPU of a request, ms", f"{http.clients} clients", *(f"{pause:g} ms" for pause in _MEAN_PAUSES_MS)]
    return _table(head, rows)


def _queries(minilm: Compute, static: Compute, http: Http) -> str:
    lengths = sorted(minilm.encode_ms)

    def row(compute: Compute) -> list[str]:
        times = [capacity.query_ms(compute, http, length) for length in lengths]
        return [compute.encoder, *(f"{1e3 / each:,.0f} ({each:.1f} ms)" for each in times)]

    return _table(["encoder", *(f"{length} tokens" for length in lengths)], [row(minilm), row(static)])


def _replicas(minilm: Compute, static: Compute, http: Http) -> str:
    rows = []
    for rate in (100, 1_000, 10_000, 50_000):
        row = [f"{rate:,}"]
        for compute in (minilm, static):
            spent = capacity.query_ms(compute, http, compute.tokens)
            row += [
                f"{capacity.cores(rate, spent, _UTILISATION):,.1f}",
                f"{capacity.replicas(rate, spent, _CORES, _UTILISATION, _SPARE):,}",
            ]
        rows.append(row)
    names = [f"{compute.encoder}: {figure}" for compute in (minilm, static) for figure in ("cores", "replicas")]
    return _table(["queries/s", *names], rows)


def _network(http: Http) -> str:
    rows = [
        [f"{rate:,}", *(f"{capacity.network_bits(http, rate, hops) / 1e6:,.1f}" for hops in (1, 2))]
        for rate in (1_000, 10_000, 50_000)
    ]
    return _table(["queries/s", "Mbit/s at the replicas", "Mbit/s at nginx"], rows)


def _indexes(indexes: Indexes) -> str:
    rows = [
        [
            f"`{cost.index}`",
            f"{cost.bytes_per_key:,.0f}",
            f"{cost.recall:.3f}",
            f"{cost.search_ms:.2f}",
            f"{capacity.index_ms(cost, indexes):.2f}",
            *(f"{capacity.most_keys(1e9 * memory, cost, indexes) / 1e6:,.0f}" for memory in _MEMORY_GB),
        ]
        for cost in indexes.costs
    ]
    head = ["index", "bytes a key", "recall", "ms a search", "ms of CPU a key to build"]
    return _table([*head, *(f"million keys in {memory} GB" for memory in _MEMORY_GB)], rows)


def _changes(swap: Swap, changes: Changes) -> str:
    longest = max(step.cpu_ms for step in swap.steps)
    locked = max(step.locked_ms for step in swap.steps)
    rows = {
        f"swap of a bundle of {swap.bundle_mb:,.0f} MB": f"{swap.seconds:.2f} s, {swap.cpu_seconds:.2f} s of CPU",
        "steps of this swap, with pauses between them": f"{len(swap.steps)}, the longest {longest:.0f} ms",
        "longest time in which a step keeps Python's global interpreter lock": f"{locked:.0f} ms",
        "swap to a version with equal files": f"{swap.shared_cpu_seconds:.2f} s of CPU",
        "checksums on one thread": f"{swap.checksum_gb_per_second:.1f} GB/s",
        "a live instance, in the replica that writes it": f"{changes.write_cpu_ms:.1f} ms of CPU",
        "a live instance, in each other replica": f"{changes.follow_cpu_ms:.2f} ms of CPU",
        "a live instance in the log": f"{changes.log_bytes:,.0f} bytes",
        "compaction, for each key, without encoding and training": f"{changes.compact_cpu_ms:.2f} ms of CPU",
    }
    return _table(["a change", "measured"], rows.items())


def _large(indexes: Indexes, swap: Swap, changes: Changes, compute: Compute) -> str:
    rows = []
    for cost in indexes.costs:
        gigabytes = capacity.bundle_bytes(_LARGE, cost, indexes) / 1e9
        hours = capacity.compaction(_LARGE, cost, indexes, changes, compute)
        rows.append(
            [
                f"`{cost.index}`",
                f"{gigabytes:,.0f} GB",
                f"{gigabytes / _LINK_GB_PER_SECOND / 60:,.0f} min",
                f"{gigabytes / swap.checksum_gb_per_second / 60:,.0f} min",
                f"{hours.merge:,.0f}",
                f"{hours.index:,.0f}",
                "0" if cost.index == "Flat" else f"{hours.encode:,.0f}",
            ]
        )
    head = ["index", "bundle", "download at 10 Gbit/s", "checksums", "merge, core hours", "index", "encoding"]
    return _table(head, rows)


def _writes(changes: Changes) -> str:
    rows = []
    for rate in (1, 10, 100):
        cost = capacity.live_writes(rate, _FLEET, changes)
        rows.append(
            [f"{rate}", f"{cost.cores:.2f}", f"{cost.log_gb_per_day:,.1f} GB", f"{cost.full_after_hours:,.1f} h"]
        )
    return _table(["writes/s", "busy cores, of all replicas", "log a day", "compaction after"], rows)


def _validation(validation: Validation) -> str:
    rows = []
    for pair in validation.pairs:
        error = f"{100 * pair.error:+.0f}%"
        rows.append(
            [
                f"{pair.replicas}",
                pair.load,
                _NAMES.get(pair.figure, pair.figure),
                _spread(pair.figure, pair.measured),
                _spread(pair.figure, pair.predicted),
                error if abs(pair.error) <= _ACCEPTED else f"**{error}**",
            ]
        )
    return _table(["replicas", "load", "figure", "measured", "predicted", "error"], rows)


def _spread(figure: str, spread: Spread) -> str:
    median, least, most = (
        f"{100 * value:.1f}%" if figure in ("refused", "lost") else f"{value:,.1f}"
        for value in (spread.median, spread.least, spread.most)
    )
    return f"{median} ({least} to {most})"


def _verdict(pairs: list[Pair]) -> str:
    return f"{sum(abs(pair.error) <= _ACCEPTED for pair in pairs)} of {len(pairs)}"


def _summary(validation: Validation) -> str:
    """The errors of each figure, for one replica and for two."""
    groups: dict[tuple[str, int], list[Pair]] = {}
    for pair in validation.pairs:
        groups.setdefault((pair.figure, pair.replicas), []).append(pair)
    rows = []
    for (figure, replicas), pairs in groups.items():
        errors = sorted(pair.error for pair in pairs)
        spread = f"{100 * errors[0]:+.0f}% to {100 * errors[-1]:+.0f}%"
        rows.append([_NAMES.get(figure, figure), f"{replicas}", _verdict(pairs), spread])
    return _table(["figure", "replicas", "within 15%", "errors"], sorted(rows))


def _counted(measured: list[Figures]) -> str:
    return f"{sum(figures.stolen <= MOST_STOLEN for figures in measured)} of {len(measured)} do"


def _scenarios(scenarios: Scenarios) -> str:
    rows = [
        [
            row.case,
            f"{row.load:.0%}",
            f"{row.rate:,.0f}",
            f"{row.before_p50:.0f} / {row.before_p99:.0f}",
            f"{row.p50:.0f} / {row.p99:,.0f}",
            f"{100 * row.answered:.2f}%",
            f"{100 * row.refused:.2f}%",
            f"{100 * row.lost:.3f}%",
            f"{100 * row.after:.1f}%, {row.after_p99:,.0f}",
        ]
        for row in scenarios.rows
    ]
    head = ["case", "load", "requests/s", "p50 / p99 before, ms", "p50 / p99 in 4 s after, ms"]
    return _table([*head, "answered", "refused", "lost", "later: answered, p99"], rows)
