"""The batcher computes queued requests together, in order and with their version, and drops cancelled requests."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recollect.service.errors import DrainingError, OverloadError
from recollect.service.options import AnswerOptions, resolve_options
from recollect.service.predictor.answers import Answer, Answers, ScoredLabel
from recollect.service.predictor.predictor import Predictor
from recollect.service.serving.batcher import Batcher
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import Lease, OpenVersions

MAX_TOGETHER = 32
OPTIONS = AnswerOptions(lambda_=0.5, temperature=0.04, top_b=5, top_k=3)
PATIENCE_SECONDS = 30


class Gate:
    """A predictor whose answers contain the queries.

    The predictor waits until `open` is set, and records its batches.
    """

    version = "v1"
    manifest = SimpleNamespace(probabilities=None)
    memory = SimpleNamespace(sequence=0)

    def __init__(self, is_faster_together: bool = False) -> None:
        self.is_faster_together = is_faster_together
        self.batches: list[list[str]] = []
        self.closed = False
        self.checkpoints = 0
        self.started, self.open = threading.Semaphore(0), threading.Event()
        self.versions = OpenVersions()
        self.versions.replace(cast(Predictor, self))

    def lease(self) -> Lease:
        return self.versions.lease()

    def close(self) -> None:
        self.closed = True

    def predict_together(
        self, requests: list[tuple[list[str], AnswerOptions]], checkpoint: Callable[[], None]
    ) -> list[Answers]:
        self.batches.append([query for queries, _ in requests for query in queries])
        self.started.release()
        assert self.open.wait(PATIENCE_SECONDS)
        if any("blocks" in queries for queries, _ in requests):
            for _ in range(100):
                checkpoint()
                self.checkpoints += 1
        if any("fault" in queries for queries, _ in requests):
            raise ValueError("a fault")
        if any("panic" in queries for queries, _ in requests):
            raise BaseException("a panic")
        return [Answers([answer(query) for query in queries], {"encode": 1.0}) for queries, _ in requests]

    async def busy(self) -> None:
        """Wait until a batch has started."""
        assert await asyncio.to_thread(self.started.acquire, timeout=PATIENCE_SECONDS)


def answer(query: str) -> Answer:
    """An answer whose best label has the query as uid."""
    return Answer([ScoredLabel(0, query, query, 1.0)], truncated=False, exhausted=False)


def best_uids(answers: Answers) -> list[str]:
    return [each.labels[0].uid for each in answers.answers]


@pytest.fixture
def start_batcher() -> Iterator[Callable[..., Batcher]]:
    batchers: list[Batcher] = []

    def start(
        threads: int = 1, max_waiting: int = 100, hang_seconds: float = 60, metrics: Metrics | None = None
    ) -> Batcher:
        batchers.append(Batcher(threads, max_waiting, MAX_TOGETHER, metrics or Metrics(), hang_seconds))
        batchers[-1].start()
        return batchers[-1]

    yield start
    for batcher in batchers:
        batcher.close()


def test_request_is_computed_alone_if_a_thread_is_idle_and_queued_requests_are_computed_together(
    start_batcher: Any,
) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        others = [batcher.submit(gate.lease(), [f"{number}", "x"], OPTIONS, best_uids) for number in range(5)]
        assert batcher.queries_waiting == 10
        gate.open.set()
        assert await first == ["first"]
        assert await asyncio.gather(*others) == [[f"{number}", "x"] for number in range(5)]
        assert gate.batches[0] == ["first"]
        assert gate.batches[1:] == [[word for number in range(5) for word in (f"{number}", "x")]]
        assert batcher.queries_waiting == 0

    asyncio.run(ask())


def test_threads_share_the_queued_requests_and_no_batch_exceeds_its_maximum_size(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher(threads=2, max_waiting=1_000)
        busy = [batcher.submit(gate.lease(), ["one"], OPTIONS, best_uids)]
        await gate.busy()
        busy.append(batcher.submit(gate.lease(), ["two"], OPTIONS, best_uids))
        await gate.busy()
        waiting = [batcher.submit(gate.lease(), [str(number)], OPTIONS, best_uids) for number in range(100)]
        gate.open.set()
        await asyncio.gather(*busy, *waiting)
        sizes = [len(batch) for batch in gate.batches[2:]]
        assert sum(sizes) == 100
        assert sizes[0] == MAX_TOGETHER
        assert len(sizes) > 3
        assert sizes[-1] < MAX_TOGETHER

    asyncio.run(ask())


@pytest.mark.parametrize(("together", "size"), [(True, 20), (False, 10)])
def test_thread_takes_all_queued_requests_if_queries_are_faster_together(
    start_batcher: Any, together: bool, size: int
) -> None:
    async def ask() -> None:
        gate, batcher = Gate(is_faster_together=together), start_batcher(threads=2)
        busy = [batcher.submit(gate.lease(), ["one"], OPTIONS, best_uids)]
        await gate.busy()
        busy.append(batcher.submit(gate.lease(), ["two"], OPTIONS, best_uids))
        await gate.busy()
        waiting = [batcher.submit(gate.lease(), [str(number)], OPTIONS, best_uids) for number in range(20)]
        gate.open.set()
        await asyncio.gather(*busy, *waiting)
        assert len(gate.batches[2]) == size

    asyncio.run(ask())


def test_small_request_does_not_wait_for_a_large_request_queued_after_it(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        small = batcher.submit(gate.lease(), ["small"], OPTIONS, best_uids)
        large = batcher.submit(gate.lease(), ["large"] * 64, OPTIONS, best_uids)
        gate.open.set()
        await asyncio.gather(first, small, large)
        assert [len(batch) for batch in gate.batches] == [1, 1, 64]

    asyncio.run(ask())


def test_cancelled_request_is_not_computed(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        gone = batcher.submit(gate.lease(), ["gone"], OPTIONS, best_uids)
        kept = batcher.submit(gate.lease(), ["kept"], OPTIONS, best_uids)
        gone.cancel()
        first.cancel()  # its batch has started: the request is computed, and its answer is discarded
        gate.open.set()
        assert await kept == ["kept"]
        assert gate.batches == [["first"], ["kept"]]

    asyncio.run(ask())


def test_request_that_exceeds_the_queue_limit_is_refused_at_once(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher(max_waiting=4)
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        waiting = [batcher.submit(gate.lease(), ["a", "b", "c"], OPTIONS, best_uids)]
        with pytest.raises(OverloadError, match="3 queries wait"):
            batcher.submit(gate.lease(), ["d", "e"], OPTIONS, best_uids)
        waiting.append(batcher.submit(gate.lease(), ["d"], OPTIONS, best_uids))
        gate.open.set()
        assert await asyncio.gather(first, *waiting) == [["first"], ["a", "b", "c"], ["d"]]
        large = batcher.submit(
            gate.lease(), list("abcdefgh"), OPTIONS, best_uids
        )  # larger than the queue limit, but the queue is empty
        assert await large == list("abcdefgh")

    asyncio.run(ask())


def test_failing_request_does_not_fail_the_others_of_its_batch(start_batcher: Any) -> None:
    def refuse(answers: Answers) -> None:
        raise KeyError("this answer has no result")

    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        good, bad, unconverted, also = (
            batcher.submit(gate.lease(), [query], OPTIONS, convert)
            for query, convert in (
                ("good", best_uids),
                ("fault", best_uids),
                ("unconverted", refuse),
                ("also good", best_uids),
            )
        )
        gate.open.set()
        found = await asyncio.gather(first, good, bad, unconverted, also, return_exceptions=True)
        assert [found[0], found[1], found[4]] == [["first"], ["good"], ["also good"]]
        assert isinstance(found[2], ValueError)
        assert isinstance(found[3], KeyError)

    asyncio.run(ask())


def test_panic_in_a_library_fails_its_request_and_neither_ends_the_thread_nor_keeps_the_lease(
    start_batcher: Any,
) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        gate.open.set()
        lease = gate.lease()
        with pytest.raises(RuntimeError, match="a panic"):
            await batcher.submit(lease, ["panic"], OPTIONS, best_uids)
        assert await batcher.submit(lease, ["next"], OPTIONS, best_uids) == ["next"]
        lease.release()
        gate.versions.replace(cast(Predictor, Gate()))
        gate.versions.retire_standby()
        while gate.versions.close_unused() == 0:  # until the thread has released its share
            await asyncio.sleep(0.01)
        assert gate.closed

    asyncio.run(ask())


def test_no_batch_contains_requests_for_two_versions(start_batcher: Any) -> None:
    async def ask() -> None:
        old, new, batcher = Gate(), Gate(), start_batcher()
        first = batcher.submit(old.lease(), ["first"], OPTIONS, best_uids)
        await old.busy()
        mixed = [
            batcher.submit(gate.lease(), [name], OPTIONS, best_uids)
            for gate, name in ((old, "o1"), (new, "n1"), (old, "o2"))
        ]
        for gate in (old, new):
            gate.open.set()
        await asyncio.gather(first, *mixed)
        assert old.batches == [["first"], ["o1", "o2"]]
        assert new.batches == [["n1"]]

    asyncio.run(ask())


def test_closing_the_batcher_computes_the_queued_requests_first(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        futures = [batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)]
        await gate.busy()
        futures += [batcher.submit(gate.lease(), [str(number)], OPTIONS, best_uids) for number in range(3)]
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        gate.open.set()
        await closing
        assert await asyncio.gather(*futures) == [["first"], ["0"], ["1"], ["2"]]

    asyncio.run(ask())


def test_time_in_the_queue_is_reported_as_a_stage(start_batcher: Any) -> None:
    async def ask() -> dict[str, float]:
        gate = Gate()
        gate.open.set()
        return await start_batcher().submit(gate.lease(), ["q"], OPTIONS, lambda answers: answers.milliseconds)

    milliseconds = asyncio.run(ask())
    assert list(milliseconds) == ["queue", "encode"]
    assert milliseconds["queue"] >= 0


def test_requests_computed_together_get_the_same_answers_as_requests_computed_alone(predictor: Predictor) -> None:
    options = [
        resolve_options(predictor.defaults),
        resolve_options(predictor.defaults, top_k=2),
        resolve_options(predictor.defaults, lambda_=0.0),
        resolve_options(predictor.defaults, deny=("Law",)),
        resolve_options(predictor.defaults, deny=("Law",)),
        resolve_options(predictor.defaults, explain=True),
        resolve_options(predictor.defaults),
    ]
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
        old, new, batcher = Gate(), Gate(), start_batcher()
        lease = old.lease()
        answer = batcher.submit(lease, ["cancelled"], OPTIONS, best_uids)
        await old.busy()
        waiting = batcher.submit(lease, ["never started"], OPTIONS, best_uids)
        for future in (answer, waiting):
            future.cancel()
        lease.release()
        old.versions.replace(cast(Predictor, new))
        old.versions.retire_standby()
        assert (old.versions.close_unused(), old.closed) == ([], False)
        old.open.set()
        while not old.versions.close_unused():
            await asyncio.sleep(0.01)
        assert old.closed
        assert old.batches == [["cancelled"]]

    asyncio.run(ask())


def test_equal_requests_are_computed_once_and_a_cancelled_request_does_not_cancel_the_others(
    start_batcher: Any,
) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        running = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        joined = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        queued = [batcher.submit(gate.lease(), ["a", "b"], OPTIONS, best_uids) for _ in range(3)]
        other = batcher.submit(gate.lease(), ["a"], dataclasses.replace(OPTIONS, top_k=2), best_uids)
        assert batcher.queries_waiting == 3
        for cancelled in (running, queued[0]):
            cancelled.cancel()
        gate.open.set()
        assert await asyncio.gather(joined, *queued[1:], other) == [["first"], ["a", "b"], ["a", "b"], ["a"]]
        assert sorted(query for batch in gate.batches for query in batch) == ["a", "a", "b", "first"]
        again = await batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        assert (again, gate.batches[-1]) == (["first"], ["first"])

    asyncio.run(ask())


def test_equal_requests_for_two_versions_are_computed_separately(start_batcher: Any) -> None:
    async def ask() -> None:
        old, new, batcher = Gate(), Gate(), start_batcher()
        new.open.set()
        first = batcher.submit(old.lease(), ["same"], OPTIONS, best_uids)
        await old.busy()
        second = batcher.submit(new.lease(), ["same"], OPTIONS, best_uids)
        old.open.set()
        await asyncio.gather(first, second)
        assert (old.batches, new.batches) == ([["same"]], [["same"]])

    asyncio.run(ask())


def test_running_batch_stops_before_its_next_block_when_all_its_requests_are_cancelled(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        gone = batcher.submit(gate.lease(), ["blocks"], OPTIONS, best_uids)
        await gate.busy()
        gone.cancel()
        same = batcher.submit(gate.lease(), ["blocks"], OPTIONS, best_uids)  # does not join a computation that stops
        gate.open.set()
        assert await same == ["blocks"]
        assert gate.batches == [["blocks"], ["blocks"]]
        assert gate.checkpoints == 100  # only those of the second batch

    asyncio.run(ask())


def test_abort_fails_waiting_and_running_requests_and_refuses_further_requests(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher()
        running = batcher.submit(gate.lease(), ["blocks"], OPTIONS, best_uids)
        await gate.busy()
        waiting = [batcher.submit(gate.lease(), [query], OPTIONS, best_uids) for query in ("a", "a", "b")]
        assert (batcher.busy_threads, batcher.threads) == (1, 1)
        assert batcher.abort() == 4
        for future in (running, *waiting):
            with pytest.raises(DrainingError, match="send the request to another replica"):
                await future
        with pytest.raises(DrainingError):
            batcher.submit(gate.lease(), ["late"], OPTIONS, best_uids)
        gate.open.set()
        await asyncio.to_thread(batcher.close)
        assert (gate.batches, gate.checkpoints, batcher.busy_threads) == ([["blocks"]], 0, 0)

    asyncio.run(ask())


def test_expensive_request_counts_as_several_queries_in_the_queue(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher(max_waiting=12)
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        large = dataclasses.replace(OPTIONS, top_b=10_000)  # costs 11
        accepted = [batcher.submit(gate.lease(), [query], large, best_uids) for query in ("a", "a")]  # equal: once
        with pytest.raises(OverloadError, match="1 queries wait"):
            batcher.submit(gate.lease(), ["b"], large, best_uids)
        accepted.append(batcher.submit(gate.lease(), ["b"], OPTIONS, best_uids))
        gate.open.set()
        assert await asyncio.gather(first, *accepted) == [["first"], ["a"], ["a"], ["b"]]

    asyncio.run(ask())


def test_batcher_hangs_while_a_batch_runs_longer_than_it_may(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), start_batcher(hang_seconds=0.01)
        assert not batcher.hung
        slow = batcher.submit(gate.lease(), ["slow"], OPTIONS, best_uids)
        while not batcher.hung:
            await asyncio.sleep(0.01)
        gate.open.set()
        await slow
        while batcher.busy_threads:
            await asyncio.sleep(0.01)
        assert not batcher.hung

    asyncio.run(ask())


def test_batch_does_not_hang_while_it_goes_on_to_further_blocks(
    start_batcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, hung = [0.0], []
    monkeypatch.setattr(
        "recollect.service.serving.batcher.time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=float)
    )

    async def ask() -> None:
        gate, batcher = Gate(), start_batcher(hang_seconds=60)

        def predict_together(requests: Any, checkpoint: Callable[[], None]) -> list[Answers]:
            for _ in range(3):
                now[0] += 50
                hung.append(batcher.hung)
                checkpoint()
            now[0] += 70
            hung.append(batcher.hung)
            return [Answers([answer("long")], {})]

        monkeypatch.setattr(gate, "predict_together", predict_together)
        assert await batcher.submit(gate.lease(), ["long"], OPTIONS, best_uids) == ["long"]

    asyncio.run(ask())
    assert hung == [False, False, False, True]


def test_time_in_the_queue_of_a_dropped_request_is_measured(start_batcher: Any) -> None:
    async def ask() -> None:
        gate, metrics = Gate(), Metrics()
        batcher = start_batcher(metrics=metrics)
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, best_uids)
        await gate.busy()
        batcher.submit(gate.lease(), ["dropped"], OPTIONS, best_uids).cancel()
        gate.open.set()
        await first
        await asyncio.to_thread(batcher.close)
        assert b'recollect_stage_seconds_count{stage="queue"} 1.0' in metrics.exposition()


def test_load_is_the_share_of_threads_that_compute(start_batcher: Any) -> None:
    async def until_load(batcher: Batcher, load: float) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while batcher.load != load:
                await asyncio.sleep(0.001)

    async def ask() -> None:
        gate, batcher = Gate(), start_batcher(threads=2)
        await until_load(batcher, 0)
        answers = []
        for query, load in (("bread", 0.5), ("milk", 1.0), ("rice", 1.0)):
            answers.append(batcher.submit(gate.lease(), [query], OPTIONS, best_uids))
            await until_load(batcher, load)
        gate.open.set()
        await asyncio.gather(*answers)
        await until_load(batcher, 0)

    asyncio.run(ask())
