"""The batcher computes queued requests together, in order and with their version, and drops cancelled requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recollect.core.answers import Answer, Answers, ScoredLabel
from recollect.core.options import AnswerOptions, resolve_options
from recollect.core.predictor import Predictor
from recollect.service.serving.batcher import Batcher, Computed
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import Lease, OpenVersions

OPTIONS = AnswerOptions(lambda_=0.5, temperature=0.04, top_b=5, top_k=3)
PATIENCE_SECONDS = 30
# Cost of a request that threads compute.
SLOW = 2


class Gate:
    """A predictor whose answers contain the queries.

    The predictor waits until `open` is set, and records its batches.
    """

    version = "v1"
    manifest = SimpleNamespace(probabilities=None)
    memory = SimpleNamespace(sequence=0)

    def __init__(self, quick_cost: float = 0.0) -> None:
        self.is_faster_together, self.quick_cost = False, quick_cost
        self.threads: list[str] = []
        self.batches: list[list[str]] = []
        self.closed = False
        self.started, self.open = threading.Semaphore(0), threading.Event()
        self.versions = OpenVersions()
        self.versions.make_current(cast(Predictor, self))

    def lease(self) -> Lease:
        return self.versions.lease()

    def close(self) -> None:
        self.closed = True

    def predict_together(
        self,
        requests: list[tuple[list[str], AnswerOptions]],
        checkpoint: Callable[[], None],
        deadlines: list[float],
    ) -> list[Answers]:
        self.batches.append([query for queries, _ in requests for query in queries])
        self.threads.append(threading.current_thread().name)
        self.started.release()
        assert self.open.wait(PATIENCE_SECONDS)
        if any("fault" in queries for queries, _ in requests):
            raise ValueError("a fault")
        if any("panic" in queries for queries, _ in requests):
            raise BaseException("a panic")
        return [Answers([answer(query) for query in queries], {"encode": 1.0}) for queries, _ in requests]

    async def busy(self) -> None:
        assert await asyncio.to_thread(self.started.acquire, timeout=PATIENCE_SECONDS)


def answer(query: str) -> Answer:
    """An answer whose best label has the query as uid."""
    return Answer([ScoredLabel(0, query, query, query, 1.0)], truncated=False, exhausted=False)


def replace(gate: Gate) -> None:
    """Make another version current, and let the one of the gate close when it is unused."""
    gate.versions.make_current(cast(Predictor, Gate()))
    assert gate.versions.standby is not None
    gate.versions.retire(gate.versions.standby)


def best_uids(computed: Computed) -> list[str]:
    return [json.loads(each)["labels"][0]["uid"] for each in computed.json]


@pytest.fixture
def start_batcher() -> Iterator[Callable[..., Batcher]]:
    batchers: list[Batcher] = []

    def start(threads: int = 1) -> Batcher:
        batchers.append(Batcher(threads, 100, 32, Metrics(), 60))
        batchers[-1].start()
        return batchers[-1]

    yield start
    for batcher in batchers:
        batcher.close()


def test_failing_request_does_not_fail_the_others_of_its_batch(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, SLOW)
        await gate.busy()
        others = [batcher.submit(gate.lease(), [query], OPTIONS, SLOW) for query in ("good", "fault", "also good")]
        gate.open.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [best_uids(found[row]) for row in (0, 1, 3)] == [["first"], ["good"], ["also good"]]
        assert isinstance(found[2], ValueError)

    asyncio.run(ask())


def test_quick_query_is_computed_by_the_event_loop_only_if_nothing_else_is_to_do(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(quick_cost=1.0), start_batcher(threads=2)
        gate.open.set()
        here = threading.current_thread().name
        assert best_uids(await batcher.submit(gate.lease(), ["alone"], OPTIONS, 1)) == ["alone"]
        assert gate.threads == [here]
        await batcher.submit(gate.lease(), ["expensive"], OPTIONS, SLOW)
        together = [batcher.submit(gate.lease(), [query], OPTIONS, 1) for query in ("a", "b")]
        await asyncio.gather(*together)
        gate.open.clear()
        running = batcher.submit(gate.lease(), ["running"], OPTIONS, SLOW)
        while batcher.busy_threads != 1:
            await asyncio.sleep(0.001)
        beside = batcher.submit(gate.lease(), ["beside"], OPTIONS, 1)
        gate.open.set()
        await asyncio.gather(running, beside)
        assert here not in gate.threads[1:]
        with pytest.raises(ValueError, match="a fault"):
            await batcher.submit(gate.lease(), ["fault"], OPTIONS, 1)
        assert best_uids(await batcher.submit(gate.lease(), ["after"], OPTIONS, 1)) == ["after"]

    asyncio.run(ask())


def test_panic_in_a_library_fails_its_request_and_neither_ends_the_thread_nor_keeps_the_lease(
    start_batcher: Any,
) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        gate.open.set()
        lease = gate.lease()
        with pytest.raises(RuntimeError, match="a panic"):
            await batcher.submit(lease, ["panic"], OPTIONS, SLOW)
        assert best_uids(await batcher.submit(lease, ["next"], OPTIONS, SLOW)) == ["next"]
        lease.release()
        replace(gate)
        while not gate.closed:  # until the thread has released its share
            await asyncio.sleep(0.01)
            gate.versions.close_unused()

    asyncio.run(ask())


def test_requests_computed_together_get_the_same_answers_as_requests_computed_alone(predictor: Predictor) -> None:
    deny: dict[str, Any] = {"deny": ("Law",)}
    chosen = ({}, {"top_k": 2}, {"lambda_": 0.0}, deny, deny, {"explain": True}, {})
    options = [resolve_options(predictor.defaults, **each) for each in chosen]
    requests = [([f"query {number}", "Who must pay tax"], each) for number, each in enumerate(options)]
    together = predictor.predict_together(requests)
    for (queries, each), found in zip(requests, together, strict=True):
        alone = predictor.predict(queries, each)
        for first, second in zip(found.answers, alone.answers, strict=True):
            assert [label.uid for label in first.labels] == [label.uid for label in second.labels]
            for one, other in zip(first.labels, second.labels, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-5)
        assert list(found.milliseconds) == ["tokenize", "encode", "search", "combine"]


def test_batch_keeps_its_version_open_even_if_its_request_is_cancelled(start_batcher: Any) -> None:
    async def ask() -> None:
        old, batcher = Gate(), start_batcher()
        lease = old.lease()
        answer = batcher.submit(lease, ["cancelled"], OPTIONS, SLOW)
        await old.busy()
        waiting = batcher.submit(lease, ["never started"], OPTIONS, SLOW)
        for future in (answer, waiting):
            future.cancel()
        lease.release()
        replace(old)
        assert (old.versions.close_unused(), old.closed) == ([], False)
        old.open.set()
        while not old.versions.close_unused():
            await asyncio.sleep(0.01)
        assert old.closed
        assert old.batches == [["cancelled"]]

    asyncio.run(ask())
