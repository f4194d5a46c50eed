"""The constants of the model: measured on a machine, and recorded as JSON with the machine and the date."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from loadtests.processes import busy_seconds, cpu_model, cpu_seconds
from service.threads import usable_cores

RECORDED = Path(__file__).parent / "recorded"


def machine_name() -> str:
    """The CPU of this machine, its number of usable cores, and its vector instructions."""
    name, flags = cpu_model()
    return f"{usable_cores()} cores, {name} ({', '.join(flags)})"


class Recorded(BaseModel):
    """Measurements of one command.

    Attributes:
        machine: The machine.
        date: The day of the measurement.
        others: Share of the machine's CPU time that other programs used meanwhile.
    """

    model_config = ConfigDict(frozen=True)

    machine: str = Field(default_factory=machine_name)
    date: str = Field(default_factory=lambda: datetime.datetime.now(datetime.UTC).date().isoformat())
    others: float = 0.0


Kind = TypeVar("Kind", bound=Recorded)


def read(kind: type[Kind], name: str) -> Kind:
    """Read recorded measurements.

    Raises:
        OSError: If nothing is recorded under this name.
        ValueError: If the file is damaged.
    """
    return kind.model_validate_json((RECORDED / f"{name}.json").read_bytes())


def record(measure: Callable[[], Recorded], name: str) -> None:
    """Measure, and write the measurements with the share of the CPU time that other programs used meanwhile."""
    start, busy, own = time.perf_counter(), busy_seconds(), cpu_seconds(os.getpid())
    recorded = measure()
    others = busy_seconds() - busy - (cpu_seconds(os.getpid()) - own)
    share = max(0.0, others / (time.perf_counter() - start) / usable_cores())
    write(recorded.model_copy(update={"others": share}), name)


def write(recorded: Recorded, name: str) -> None:
    RECORDED.mkdir(exist_ok=True)
    content = json.dumps(_rounded(recorded.model_dump(mode="json")), indent=1)
    (RECORDED / f"{name}.json").write_text(content + "\n", encoding="utf-8")


def _rounded(content: Any) -> Any:
    """Round all numbers to five digits."""
    if isinstance(content, float):
        return float(f"{content:.5g}")
    if isinstance(content, list):
        return [_rounded(each) for each in content]
    if isinstance(content, dict):
        return {name: _rounded(each) for name, each in content.items()}
    return content


class Compute(Recorded):
    """CPU times of a predictor on one thread, without HTTP, in milliseconds.

    Attributes:
        encoder: Kind and precision of the encoder.
        memory: Number of keys, and their indexes.
        tokens: Mean number of tokens of the queries.
        is_faster_together: Whether a free thread of the service takes all queries that wait, instead of its share.
        batch_ms: Median time of a batch, by its number of queries; each batch follows the work before directly.
        search_ms: Part of `batch_ms` in which the keys are searched.
        single_ms: The percentiles 0 to 100 of the time of a single query.
        pause_ms: Median time of a single query after a pause of so many milliseconds, in which the machine is idle.
        encode_ms: Time to encode a text, by its number of tokens.
        slowdown: Time of a batch while another process keeps another core busy, divided by its time without.
    """

    encoder: str
    memory: str
    tokens: float
    is_faster_together: bool
    batch_ms: dict[int, float]
    search_ms: dict[int, float]
    single_ms: list[float]
    pause_ms: dict[float, float]
    encode_ms: dict[int, float]
    slowdown: float

    def mean_batch_ms(self, queries: int, in_engine: bool = False) -> float:
        """Mean time of a batch; between two measured sizes, the time is interpolated.

        Args:
            queries: Number of queries.
            in_engine: Whether an engine such as Milvus searches the keys, so that the search costs no time here.
        """
        sizes = sorted(self.batch_ms)
        times = [self.batch_ms[size] - in_engine * self.search_ms[size] for size in sizes]
        if queries > sizes[-1]:
            return times[-1] * queries / sizes[-1]
        return float(np.interp(queries, sizes, times))

    def pause_extra_ms(self, pause_ms: float) -> float:
        """Time that a batch takes longer after a pause, because caches are cold and the core has to wake up."""
        pauses = sorted(self.pause_ms)
        times = [self.pause_ms[pause] for pause in pauses]
        return max(0.0, float(np.interp(pause_ms, pauses, times)) - times[0])


class Http(Recorded):
    """Costs of a request to `/predict` beside the computation of its answer, with one client.

    Attributes:
        loop_ms: CPU time of the service's event loop.
        client_ms: CPU time of the load generator.
        wait_ms: Latency without the CPU times of client, event loop and computation: threads wake up, data is copied.
        proxy_ms: CPU time of nginx.
        proxy_wait_ms: Latency that nginx adds, without its CPU time.
        cached_loop_ms: CPU time of the event loop for an answer from the cache.
        request_bytes: Size of a request, with its headers.
        answer_bytes: Size of an answer, with its headers.
    """

    loop_ms: float
    client_ms: float
    wait_ms: float
    proxy_ms: float
    proxy_wait_ms: float
    cached_loop_ms: float
    request_bytes: float
    answer_bytes: float


class IndexCost(BaseModel):
    """An index of synthetic keys: see `benchmarks.index_costs`."""

    model_config = ConfigDict(frozen=True)

    index: str
    keys: int
    bytes_per_key: float
    recall: float
    search_ms: float
    build_cpu_seconds: float
    peak_mb: float


class Indexes(Recorded):
    """Costs of the kinds of indexes; `bytes_per_instance` are the other files of a bundle: texts, uids and labels."""

    dim: int
    labels_per_instance: float
    bytes_per_instance: float
    costs: list[IndexCost]


class Changes(Recorded):
    """Costs of new versions, live writes and compaction.

    Attributes:
        bundle_mb: Size of the bundle, in millions of bytes.
        swap_seconds: Time of a swap to a version without equal files, from its activation until it serves.
        swap_cpu_seconds: CPU time of this swap in the replica.
        shared_swap_cpu_seconds: The same for a version whose files are equal, except for its manifest.
        checksum_gb_per_second: Rate at which one thread computes the SHA-256 of mapped files.
        write_cpu_ms: CPU time of a live instance in the replica that writes it, with its encoding.
        follow_cpu_ms: CPU time of this instance in each other replica.
        log_bytes: Size of a live instance in the log of the store.
        compact_cpu_ms: CPU time of `recollect compact` for each key, from exact indexes to exact indexes, so without
            encoding and without the training of an index.
    """

    bundle_mb: float
    swap_seconds: float
    swap_cpu_seconds: float
    shared_swap_cpu_seconds: float
    checksum_gb_per_second: float
    write_cpu_ms: float
    follow_cpu_ms: float
    log_bytes: float
    compact_cpu_ms: float
