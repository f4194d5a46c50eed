"""Requests that wait are answered together, in their turn, by their version; what nobody waits for is dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from service.errors import OverloadError
from service.options import AnswerOptions, resolve_options
from service.predictor.predictor import Answer, Answers, Predictor, ScoredLabel
from service.serving.batcher import Batcher
from service.telemetry.metrics import Telemetry
from service.versions.leases import Lease, Leases

MOST_TOGETHER = 32
OPTIONS = AnswerOptions(lambda_=0.5, temperature=0.04, top_b=5, top_k=3)
PATIENCE_SECONDS = 30


class Gate:
    """A predictor that answers with what it was asked, once it is let; it keeps what it was asked together."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.closed = False
        self.begun, self.open = threading.Semaphore(0), threading.Event()
        self.leases = Leases()
        self.leases.replace(cast(Predictor, self))

    def lease(self) -> Lease:
        return self.leases.lease()

    def close(self) -> None:
        self.closed = True

    def predict_together(self, requests: list[tuple[list[str], AnswerOptions]]) -> list[Answers]:
        self.batches.append([query for queries, _ in requests for query in queries])
        self.begun.release()
        assert self.open.wait(PATIENCE_SECONDS)
        if any("fault" in queries for queries, _ in requests):
            raise ValueError("a fault")
        return [Answers([answer(query) for query in queries], {"encode": 1.0}) for queries, _ in requests]

    async def busy(self) -> None:
        """Wait until a batch is at work."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE_SECONDS)


def answer(query: str) -> Answer:
    """One whose best label is the query itself."""
    return Answer([ScoredLabel(0, query, query, 1.0)], truncated=False, exhausted=False)


def said(answers: Answers) -> list[str]:
    return [each.labels[0].uid for each in answers.answers]


@pytest.fixture
def make() -> Iterator[Callable[..., Batcher]]:
    made: list[Batcher] = []

    def batcher(threads: int = 1, most_waiting: int = 100, window_seconds: float = 0.0) -> Batcher:
        made.append(Batcher(threads, most_waiting, MOST_TOGETHER, window_seconds, Telemetry()))
        return made[-1]

    yield batcher
    for each in made:
        each.close()


def test_a_request_that_finds_a_thread_idle_is_answered_alone_and_those_behind_it_together(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, said)
        await gate.busy()
        others = [batcher.submit(gate.lease(), [f"{number}", "x"], OPTIONS, said) for number in range(5)]
        assert batcher.queries_waiting == 10
        gate.open.set()
        assert await first == ["first"]
        assert await asyncio.gather(*others) == [[f"{number}", "x"] for number in range(5)]
        assert gate.batches[0] == ["first"]
        assert gate.batches[1:] == [[word for number in range(5) for word in (f"{number}", "x")]]
        assert batcher.queries_waiting == 0

    asyncio.run(ask())


def test_threads_share_what_waits_and_none_takes_more_than_it_may(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make(threads=2, most_waiting=1_000)
        busy = [batcher.submit(gate.lease(), ["busy"], OPTIONS, said)]
        await gate.busy()
        busy.append(batcher.submit(gate.lease(), ["busy"], OPTIONS, said))
        await gate.busy()
        waiting = [batcher.submit(gate.lease(), [str(number)], OPTIONS, said) for number in range(100)]
        gate.open.set()
        await asyncio.gather(*busy, *waiting)
        sizes = [len(batch) for batch in gate.batches[2:]]
        assert sum(sizes) == 100
        assert sizes[0] == MOST_TOGETHER
        assert len(sizes) > 3
        assert sizes[-1] < MOST_TOGETHER

    asyncio.run(ask())


def test_a_small_request_does_not_wait_for_a_large_one_behind_it(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, said)
        await gate.busy()
        small = batcher.submit(gate.lease(), ["small"], OPTIONS, said)
        large = batcher.submit(gate.lease(), ["large"] * 64, OPTIONS, said)
        gate.open.set()
        await asyncio.gather(first, small, large)
        assert [len(batch) for batch in gate.batches] == [1, 1, 64]

    asyncio.run(ask())


def test_what_nobody_waits_for_any_more_costs_nothing(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, said)
        await gate.busy()
        gone = batcher.submit(gate.lease(), ["gone"], OPTIONS, said)
        kept = batcher.submit(gate.lease(), ["kept"], OPTIONS, said)
        gone.cancel()
        first.cancel()  # begun: it is finished, and nobody is told
        gate.open.set()
        assert await kept == ["kept"]
        assert gate.batches == [["first"], ["kept"]]

    asyncio.run(ask())


def test_beyond_what_may_wait_a_request_is_refused_at_once(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make(most_waiting=4)
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, said)
        await gate.busy()
        waiting = [batcher.submit(gate.lease(), ["a", "b", "c"], OPTIONS, said)]
        with pytest.raises(OverloadError, match="3 queries wait already"):
            batcher.submit(gate.lease(), ["d", "e"], OPTIONS, said)
        waiting.append(batcher.submit(gate.lease(), ["d"], OPTIONS, said))
        gate.open.set()
        assert await asyncio.gather(first, *waiting) == [["first"], ["a", "b", "c"], ["d"]]
        large = batcher.submit(gate.lease(), list("abcdefgh"), OPTIONS, said)  # more than may wait, but nothing does
        assert await large == list("abcdefgh")

    asyncio.run(ask())


def test_one_requests_fault_fails_no_other(make: Any) -> None:
    def refuse(answers: Answers) -> None:
        raise KeyError("no response of this")

    async def ask() -> None:
        gate, batcher = Gate(), make()
        first = batcher.submit(gate.lease(), ["first"], OPTIONS, said)
        await gate.busy()
        good, bad, unmade, also = (
            batcher.submit(gate.lease(), [query], OPTIONS, compose)
            for query, compose in (("good", said), ("fault", said), ("unmade", refuse), ("also good", said))
        )
        gate.open.set()
        found = await asyncio.gather(first, good, bad, unmade, also, return_exceptions=True)
        assert [found[0], found[1], found[4]] == [["first"], ["good"], ["also good"]]
        assert isinstance(found[2], ValueError)
        assert isinstance(found[3], KeyError)

    asyncio.run(ask())


def test_versions_are_never_mixed(make: Any) -> None:
    async def ask() -> None:
        old, new, batcher = Gate(), Gate(), make()
        first = batcher.submit(old.lease(), ["first"], OPTIONS, said)
        await old.busy()
        mixed = [
            batcher.submit(gate.lease(), [name], OPTIONS, said)
            for gate, name in ((old, "o1"), (new, "n1"), (old, "o2"))
        ]
        for gate in (old, new):
            gate.open.set()
        await asyncio.gather(first, *mixed)
        assert old.batches == [["first"], ["o1", "o2"]]
        assert new.batches == [["n1"]]

    asyncio.run(ask())


def test_closing_answers_what_waits(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make()
        asked = [batcher.submit(gate.lease(), ["first"], OPTIONS, said)]
        await gate.busy()
        asked += [batcher.submit(gate.lease(), [str(number)], OPTIONS, said) for number in range(3)]
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        gate.open.set()
        await closing
        assert await asyncio.gather(*asked) == [["first"], ["0"], ["1"], ["2"]]

    asyncio.run(ask())


def test_a_window_waits_for_company(make: Any) -> None:
    async def ask() -> None:
        gate, batcher = Gate(), make(window_seconds=PATIENCE_SECONDS)
        gate.open.set()
        asked = [batcher.submit(gate.lease(), [str(number)], OPTIONS, said) for number in range(MOST_TOGETHER)]
        await asyncio.gather(*asked)
        assert [len(batch) for batch in gate.batches] == [MOST_TOGETHER]

    asyncio.run(ask())


def test_the_queues_time_is_told_with_that_of_the_stages(make: Any) -> None:
    async def ask() -> dict[str, float]:
        gate = Gate()
        gate.open.set()
        return await make().submit(gate.lease(), ["q"], OPTIONS, lambda answers: answers.milliseconds)

    told = asyncio.run(ask())
    assert list(told) == ["queue", "encode"]
    assert told["queue"] >= 0


def test_requests_answered_together_get_what_they_get_alone(predictor: Predictor) -> None:
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
            for mine, its in zip(first.labels, second.labels, strict=True):
                assert mine.score == pytest.approx(its.score, abs=1e-5)
        assert list(found.milliseconds) == ["tokenize", "encode", "search", "combine"]


def test_a_batch_keeps_its_version_open_after_its_request_was_cancelled(make: Any) -> None:
    async def ask() -> None:
        old, new, batcher = Gate(), Gate(), make()
        lease = old.lease()
        answer = batcher.submit(lease, ["cancelled"], OPTIONS, said)
        await old.busy()
        waiting = batcher.submit(lease, ["never begun"], OPTIONS, said)
        for future in (answer, waiting):
            future.cancel()
        lease.release()
        old.leases.replace(cast(Predictor, new))
        assert (old.leases.close_unused(), old.closed) == (0, False)
        old.open.set()
        while old.leases.close_unused() == 0:
            await asyncio.sleep(0.01)
        assert old.closed
        assert old.batches == [["cancelled"]]

    asyncio.run(ask())
