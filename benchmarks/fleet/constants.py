"""The constants of the model, which are measured on a machine."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.records import Recorded


class Compute(Recorded):
    """CPU times of a predictor on one thread, without HTTP, in milliseconds.

    Attributes:
        encoder: Kind and precision of the encoder.
        memory: Number of keys, and their indexes.
        tokens: Mean number of tokens of the queries.
        is_faster_together: Whether a free thread of the service takes all queries that wait, instead of its share.
        reference_ms: Mean time of the reference (`measurements.reference`) meanwhile.
        batch_ms: Mean time of a batch, by its number of queries; each batch follows the work before directly.
        query_ms: Mean time of each query alone; their order is that of the queries of the loads.
        search_ms: Mean of the part of `batch_ms` in which the keys are searched.
        encode_ms: Median time to encode a text, by its number of tokens.
        slowdown: Time of the reference while another core is busy, divided by its time alone.
    """

    encoder: str
    memory: str
    tokens: float
    is_faster_together: bool
    reference_ms: float
    batch_ms: dict[int, float]
    query_ms: list[float]
    search_ms: dict[int, float]
    encode_ms: dict[int, float]
    slowdown: float

    @property
    def largest(self) -> int:
        """The largest measured number of queries in a batch."""
        return max(self.batch_ms)

    def size_ms(self, queries: float, in_engine: bool = False) -> float:
        """Mean time of a batch. Between two measured sizes, the time is interpolated.

        Args:
            queries: Number of queries, or their mean number.
            in_engine: Whether an engine such as Milvus searches the keys, so that the search costs no time here.
        """
        sizes = sorted(self.batch_ms)
        times = [self.batch_ms[size] - in_engine * self.search_ms[size] for size in sizes]
        if queries > sizes[-1]:
            return times[-1] * queries / sizes[-1]
        return float(np.interp(queries, sizes, times))

    def at(self, reference_ms: float, slowdown: float) -> Compute:
        """The times, scaled to the speed of the machine at which the reference takes so many milliseconds."""
        factor = reference_ms / self.reference_ms
        return self.model_copy(
            update={
                "reference_ms": reference_ms,
                "slowdown": slowdown,
                "batch_ms": {size: factor * each for size, each in self.batch_ms.items()},
                "query_ms": [factor * each for each in self.query_ms],
                "search_ms": {size: factor * each for size, each in self.search_ms.items()},
                "encode_ms": {length: factor * each for length, each in self.encode_ms.items()},
            }
        )


class Drift(Recorded):
    """Changes of the machine's speed within seconds, while nothing else runs.

    Attributes:
        step_seconds: Length of a step.
        slowness: CPU time of the reference (`measurements.reference`) in each step, divided by its mean over all steps.
    """

    step_seconds: float
    slowness: list[float]

    def at(self, seconds: float) -> float:
        """The slowness after so many seconds; after the last step, the first one follows."""
        return self.slowness[int(seconds / self.step_seconds) % len(self.slowness)]

    @property
    def seconds(self) -> float:
        """Length of all steps."""
        return self.step_seconds * len(self.slowness)


class ThreadCost(BaseModel):
    """CPU time of a request on a thread.

    Attributes:
        busy_ms: The time if the thread was busy before, so that no task of the request wakes it up.
        pause_ms: Mean pauses of the thread before a task that wakes it up, in ascending order.
        woken_ms: The time at each of these pauses. Caches get colder during long pauses.
    """

    model_config = ConfigDict(frozen=True)

    busy_ms: float
    pause_ms: list[float]
    woken_ms: list[float]

    @classmethod
    def constant(cls, milliseconds: float) -> ThreadCost:
        """A time that does not depend on pauses."""
        return cls(busy_ms=milliseconds, pause_ms=[0], woken_ms=[milliseconds])

    def after(self, pause_ms: float) -> float:
        """The time after pauses of this mean length."""
        return float(np.interp(pause_ms, self.pause_ms, self.woken_ms))

    def times(self, factor: float) -> ThreadCost:
        woken_ms = [factor * each for each in self.woken_ms]
        return ThreadCost(busy_ms=factor * self.busy_ms, pause_ms=self.pause_ms, woken_ms=woken_ms)

    def without(self, part: ThreadCost) -> ThreadCost:
        """The cost of the rest of a request, after this part."""
        woken_ms = [max(0.0, ms - part.after(pause)) for pause, ms in zip(self.pause_ms, self.woken_ms, strict=True)]
        busy_ms = max(0.0, self.busy_ms - part.busy_ms)
        return ThreadCost(busy_ms=busy_ms, pause_ms=self.pause_ms, woken_ms=woken_ms)


class Refused(BaseModel):
    """Cost of a request that a replica refuses because its queue is full.

    Attributes:
        loop_ms: CPU time of the event loop, which the request wakes up.
        pause_ms: Mean pause of the event loop before it wakes up.
    """

    model_config = ConfigDict(frozen=True)

    loop_ms: float
    pause_ms: float

    def times(self, factor: float) -> Refused:
        return Refused(loop_ms=factor * self.loop_ms, pause_ms=self.pause_ms)


class DeploymentCosts(BaseModel):
    """Costs of a request in a deployment: one replica, or two of them behind nginx.

    Attributes:
        loop: CPU time of the event loop of a replica.
        client: CPU time of the load generator.
        proxy: CPU time of nginx.
        refused: Cost of a refused request.
        wait_ms: The percentiles 0 to 100 of the rest of the latency: without the time in the queue, without the
            computation, and without the mean CPU times of a request in this measurement. Threads wait for a core, or
            for Python's global interpreter lock. Waits within queue and computation are not included. A value is
            negative if the CPU times were shorter than their mean, or if a part of them was used outside the latency.
        busy_wait_ms: The same while another process keeps a core busy. Then the kernel lets some threads wait for
            this core, although another one is idle.
        idle_cores: Share of a core that the machine uses while the replicas wait for requests, without their event
            loops: other threads and other programs.
    """

    model_config = ConfigDict(frozen=True)

    loop: ThreadCost
    client: ThreadCost
    proxy: ThreadCost
    refused: Refused
    wait_ms: list[float]
    busy_wait_ms: list[float]
    idle_cores: float

    def times(self, factor: float) -> DeploymentCosts:
        """The costs on a machine that takes this factor as long.

        The waits stay, because they are times of the scheduler. The share of a core stays too.
        """
        return self.model_copy(
            update={
                "loop": self.loop.times(factor),
                "client": self.client.times(factor),
                "proxy": self.proxy.times(factor),
                "refused": self.refused.times(factor),
            }
        )


class Http(Recorded):
    """Costs of a request to `/predict` in the service.

    Attributes:
        clients: Number of clients that keep the threads busy.
        reference_ms: Mean time of the reference (`measurements.reference`) meanwhile.
        alone_ms: CPU time of the computing thread for one query, by the client's pause before each request, in
            milliseconds. The caches get colder during a long pause.
        single: Costs with one replica.
        proxied: Costs with two replicas behind nginx.
        cached_loop: CPU time of the event loop for an answer from the cache.
        lock_share: Waits of a computing thread within a batch, as a share of the CPU time of the event loop during the
            batch, for each number of queries in the batch. It waits mostly for Python's global interpreter lock.
        request_bytes: Size of a request, with its headers.
        answer_bytes: Size of an answer, with its headers.
    """

    clients: int
    reference_ms: float
    alone_ms: dict[int, float]
    single: DeploymentCosts
    proxied: DeploymentCosts
    cached_loop: ThreadCost
    lock_share: dict[int, float]
    request_bytes: float
    answer_bytes: float

    def at(self, reference_ms: float) -> Http:
        """The costs, scaled to the speed of the machine at which the reference takes so many milliseconds."""
        factor = reference_ms / self.reference_ms
        return self.model_copy(
            update={
                "reference_ms": reference_ms,
                "alone_ms": {pause: factor * each for pause, each in self.alone_ms.items()},
                "single": self.single.times(factor),
                "proxied": self.proxied.times(factor),
                "cached_loop": self.cached_loop.times(factor),
            }
        )


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


class Step(BaseModel):
    """A step of the opening of a version, after which its thread may pause.

    Attributes:
        cpu_ms: CPU time of the step.
        locked_ms: The part of it in which the step keeps Python's global interpreter lock without a break, so that no
            other Python code runs.
    """

    model_config = ConfigDict(frozen=True)

    cpu_ms: float
    locked_ms: float


class Swap(Recorded):
    """Costs of a swap to another version.

    Attributes:
        reference_ms: Mean time of the reference (`measurements.reference`) meanwhile.
        bundle_mb: Size of the bundle, in millions of bytes.
        seconds: Mean time of a swap to a version without equal files, from its activation until it serves.
        cpu_seconds: Mean CPU time of this swap in the replica.
        steps: The steps in which this version is opened, without a service.
        shared_cpu_seconds: CPU time of a swap to a version whose files are equal, except for its manifest.
        checksum_gb_per_second: Rate at which one thread computes the SHA-256 of mapped files.
    """

    reference_ms: float
    bundle_mb: float
    seconds: float
    cpu_seconds: float
    steps: list[Step]
    shared_cpu_seconds: float
    checksum_gb_per_second: float

    def steps_at(self, reference_ms: float) -> list[Step]:
        """The steps, scaled to a speed of the machine, and so that the sum of their CPU times is that of the swap.

        Args:
            reference_ms: The time of the reference at this speed.
        """
        factor = reference_ms / self.reference_ms * 1e3 * self.cpu_seconds / sum(step.cpu_ms for step in self.steps)
        return [Step(cpu_ms=factor * step.cpu_ms, locked_ms=factor * step.locked_ms) for step in self.steps]


class Changes(Recorded):
    """Costs of live writes and compaction.

    Attributes:
        write_cpu_ms: CPU time of a live instance in the replica that writes it, with its encoding.
        follow_cpu_ms: CPU time of this instance in each other replica.
        log_bytes: Size of a live instance in the log of the store.
        compact_cpu_ms: CPU time of `recollect compact` for each key, from exact indexes to exact indexes, so without
            encoding and without the training of an index.
    """

    write_cpu_ms: float
    follow_cpu_ms: float
    log_bytes: float
    compact_cpu_ms: float
