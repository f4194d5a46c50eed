"""From a request to its answers, whatever the route.

The steps: check the sizes, lease the version, complete the options, count the cost for the rate limit, wait for the
required changes of the memory, look up the answer cache, and let the batcher compute the missing answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from recollect.core.answers import Answer
from recollect.core.errors import DeadlineError, QueryTooLargeError, ServiceError, UnknownSequenceError
from recollect.core.options import AnswerOptions, answer_cost, checked_options, request_cost, require_explainable
from recollect.core.predictor import Predictor
from recollect.core.vectors import AnyQuery, check_vector, require_without_words
from recollect.service.serving.answer_cache import AnswerCache, answer_keys
from recollect.service.serving.batcher import Batcher, Computed
from recollect.service.serving.rate_limit import Quota, RateLimits
from recollect.service.serving.waiters import Waiters
from recollect.service.settings import ServeSettings
from recollect.service.telemetry.metrics import Metrics
from recollect.service.telemetry.tracing import Tracer
from recollect.service.versions.open_versions import Lease, OpenVersions

log = structlog.get_logger(__name__)

# After this time, the service starts to check whether the client of a request has disconnected. The task that checks it
# takes 40 microseconds, so a request that is answered in a usual time, also at saturation, needs none.
_WATCH_AFTER_SECONDS = 0.25
# Maximum time to wait for a change of the memory that another process has written, and the time between two checks.
_FOLLOW_SECONDS, _CHECK_SECONDS = 2.0, 0.02
# Maximum number of requests that wait for a change.
_MAX_WAITING = 256


class Caller(NamedTuple):
    """Who asks: the limit of its API key, the cost that its body has paid, and its connection."""

    quota: Quota | None
    paid_bytes: int
    receive: Receive

    @classmethod
    def of(cls, request: Request) -> Caller:
        return cls(request.scope.get("api_key"), request.scope.get("paid", 0), request.receive)


@dataclass(frozen=True)
class _Asked:
    """What a request asks for beside its queries, and the time of the event loop at which it is due."""

    lease: Lease
    options: AnswerOptions
    cost: int
    caller: Caller
    deadline: float


@dataclass(frozen=True)
class Answering:
    """Answers requests."""

    versions: OpenVersions
    batcher: Batcher
    cache: AnswerCache | None
    rate_limits: RateLimits
    metrics: Metrics
    tracer: Tracer | None
    settings: ServeSettings
    follow_log: Callable[[], None]  # starts to read the log of the live memory
    _waiters: Waiters = field(default_factory=lambda: Waiters(_MAX_WAITING, "a change of the memory"), init=False)

    async def answer(
        self,
        queries: list[str],
        chosen: Mapping[str, Any],
        caller: Caller,
        version: str | None = None,
        timeout_ms: int | None = None,
        min_sequence: int = 0,
        use_cache: bool = True,
        vectors: Sequence[Sequence[float]] = (),
    ) -> tuple[str, Computed]:
        """Return the version that answers all queries of a request, and its answers.

        Args:
            chosen: Arguments of `resolve_options` that the caller chose.
            version: None means the current version.
            timeout_ms: Time until the deadline, in milliseconds; None means the longest time that the service allows.
            min_sequence: Sequence number of the last change that the answer must know.
            use_cache: Whether cached answers may be used. They are JSON only.
            vectors: Vectors in place of queries, which are then empty.

        Raises:
            QueryTooLargeError: If a query has too many bytes.
            DeadlineError: If the deadline passes.
            UnknownSequenceError: If this process does not know the required change of the memory yet.
            NotReadyError: If no bundle is loaded.
            VersionNotOpenError: If the request names a version that is not open.
            QueryError: If the request asks to explain too many keys, or for probabilities that the version lacks, or if
                a vector is wrong.
            RateLimitError: If the API key exceeds its rate.
            OverloadError: If the queue is full, or too many requests wait for a change of the memory.
            DrainingError: If the service stops before the answer is complete.
            ClientDisconnect: If the client disconnects.
        """
        start, sizes = time.perf_counter(), self._sizes(queries) or [1] * len(vectors)  # a vector is not encoded
        limit = self.settings.max_seconds
        seconds = limit if timeout_ms is None else min(timeout_ms / 1000, limit)
        deadline = asyncio.get_running_loop().time() + seconds
        with (lease := self.versions.lease(version)) as predictor:
            name, options = predictor.version, predictor.usual_options
            if chosen:
                options = checked_options(predictor.manifest, **chosen)
                require_explainable(options, len(sizes))
            asked_for: list[AnyQuery] = [*queries]
            if vectors:
                require_without_words(predictor.manifest, options, chosen)
                names = ["vector"] if len(vectors) == 1 else [f"vectors.{row}" for row in range(len(vectors))]
                asked_for = [
                    check_vector(vector, predictor.manifest, name) for vector, name in zip(vectors, names, strict=True)
                ]
            cost = request_cost(sizes, options)
            try:
                await self.rate_limits.charge(caller.quota, cost, caller.paid_bytes)
                if predictor.memory.sequence < min_sequence:
                    async with asyncio.timeout_at(deadline):
                        await self._wait_for(min_sequence, predictor)
                asked = _Asked(lease, options, cost, caller, deadline)
                computed = await self._look_up_or_compute(asked, asked_for, self.cache if use_cache else None)
                await self.rate_limits.add(caller.quota, answer_cost(sum(map(len, computed.json))))
            except ClientDisconnect:
                self.metrics.dropped.labels("gone").inc()
                raise
            except TimeoutError:
                self.metrics.dropped.labels("deadline").inc()
                self.metrics.count_outcome(name, "deadline")
                longer = f"increase timeout_ms (at most {1e3 * limit:.0f}), or " if seconds < limit else ""
                raise DeadlineError(
                    f"timeout_ms: the answer took longer than {1e3 * seconds:.0f} ms; {longer}"
                    "reduce top_b or the number of queries"
                ) from None
            except ServiceError:  # not a fault of the version
                raise
            except Exception:
                self.metrics.count_outcome(name, "failed")
                raise
        self.metrics.count_outcome(name, "answered", time.perf_counter() - start)
        if self.settings.log_queries:
            self._log_sample(name, asked_for, computed.answers)
        return name, computed

    def _sizes(self, queries: Sequence[str]) -> list[int]:
        sizes, limit = [len(query.encode()) for query in queries], self.settings.max_query_bytes
        if max(sizes, default=0) > limit:
            row = next(row for row, size in enumerate(sizes) if size > limit)
            name = "query" if len(queries) == 1 else f"queries.{row}"
            detail = f"{name}: expected at most {limit:,} bytes, found {sizes[row]:,}; send a shorter text"
            raise QueryTooLargeError(detail)
        return sizes

    async def _wait_for(self, sequence: int, predictor: Predictor) -> None:
        """Wait until the memory knows a change."""
        self.follow_log()
        deadline = time.monotonic() + _FOLLOW_SECONDS
        with self._waiters.one_more():
            while predictor.memory.sequence < sequence:
                if time.monotonic() > deadline:
                    raise UnknownSequenceError(
                        "min_sequence: expected a change that this replica knows, at most "
                        f"{predictor.memory.sequence}, found {sequence}; repeat the request later"
                    )
                await asyncio.sleep(_CHECK_SECONDS)

    async def _look_up_or_compute(self, asked: _Asked, queries: list[AnyQuery], cache: AnswerCache | None) -> Computed:
        """Take answers from the cache; compute the missing answers and put them into the cache."""
        predictor, memory = asked.lease.predictor, asked.lease.predictor.memory
        keys = None
        if cache is not None:
            keys = answer_keys(predictor.version, memory.sequence, memory.digest, asked.options, queries)
        if cache is None or keys is None:
            return await self._compute(asked, queries)
        start = time.perf_counter()
        json = await cache.get(keys)
        answers: list[Answer | None] = [None] * len(queries)
        milliseconds = {"cache": 1e3 * (time.perf_counter() - start)}
        if missing := [row for row, cached in enumerate(json) if cached is None]:
            computed = await self._compute(asked, [queries[row] for row in missing])
            if computed.sequence != memory.sequence:  # the memory has changed meanwhile
                if len(missing) == len(queries):
                    return computed
                return await self._compute(asked, queries)
            for row, content, answer in zip(missing, computed.json, computed.answers, strict=True):
                json[row], answers[row] = content, answer
            fresh = zip(missing, computed.json, computed.answers, strict=True)
            cache.put({keys[row]: content for row, content, answer in fresh if answer and answer.may_be_kept})
            milliseconds = computed.milliseconds
        return Computed([content for content in json if content is not None], answers, milliseconds, memory.sequence)

    async def _compute(self, asked: _Asked, queries: list[AnyQuery]) -> Computed:
        """Let the batcher compute answers.

        A request that is dropped before its computation starts is not computed. A computation for which no request
        waits any more is stopped.
        """
        loop = asyncio.get_running_loop()
        seconds = asked.deadline - loop.time()
        future = self.batcher.submit(asked.lease, queries, asked.options, asked.cost, seconds)
        watch_at = min(asked.deadline, loop.time() + _WATCH_AFTER_SECONDS)
        timer = loop.call_at(watch_at, _watch, asked.caller, asked.deadline, future)
        try:
            computed = await future  # a request that is cancelled cancels its future
        finally:
            timer.cancel()
        if self.tracer is not None:
            self.tracer.stages(computed.milliseconds)
        return computed

    def _log_sample(self, version: str, queries: Sequence[AnyQuery], answers: Sequence[Answer | None]) -> None:
        """Log a random sample of queries. A query whose answer was in the cache is logged without labels.

        The log of queries is off by default, because queries may contain personal data.
        """
        for query, answer in zip(queries, answers, strict=True):
            if random.random() < self.settings.log_queries:
                labels = None if answer is None else {label.uid: label.score for label in answer.labels}
                text = query if isinstance(query, str) else None  # of a vector, the log has only the labels
                log.info("query", query=text, labels=labels, version=version)


def _watch(caller: Caller, deadline: float, future: asyncio.Future[Computed]) -> None:
    """Fail the future of a request if its client disconnects, or at its deadline."""

    async def watch() -> None:
        failure: Exception = ClientDisconnect()
        try:
            async with asyncio.timeout_at(deadline):
                while (await caller.receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError as error:
            failure = error
        if not future.done():
            future.set_exception(failure)

    watching = asyncio.ensure_future(watch())
    future.add_done_callback(lambda _: watching.cancel())
