"""The path of a request, from its queries to their answers.

The steps: check the sizes, lease the version, resolve the options, count the cost for the rate limit, wait for the
required changes of the memory, look up the answer cache, and let the batcher compute the missing answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.requests import ClientDisconnect

from recollect.service.errors import (
    DeadlineError,
    QueryError,
    QueryTooLargeError,
    RateLimitError,
    SequenceError,
    ServiceError,
)
from recollect.service.options import AnswerOptions, checked_options, request_cost
from recollect.service.predictor.answers import Answer
from recollect.service.predictor.predictor import Predictor
from recollect.service.serving.answer_cache import AnswerCache, answer_keys
from recollect.service.serving.batcher import Batcher, Computed
from recollect.service.serving.rate_limit import Quota, RateLimits
from recollect.service.telemetry.metrics import Metrics
from recollect.service.telemetry.tracing import Tracer
from recollect.service.versions.open_versions import Lease, OpenVersions

log = structlog.get_logger(__name__)

# Maximum number of keys to explain in one request, over all its queries. The explanation of one key may contain several
# labels with their texts.
_MAX_EXPLAINED_KEYS = 2_000
# After this time, the service starts to check whether the client of a request has disconnected. Most requests are
# answered sooner.
_WATCH_AFTER_SECONDS = 0.1
# Maximum time to wait for a change of the memory that another process has written, and the time between two checks.
_FOLLOW_SECONDS, _CHECK_SECONDS = 2.0, 0.02


@dataclass(frozen=True)
class AnswerPipeline:
    """Answers requests.

    Attributes:
        versions: The open versions.
        batcher: Computes answers on its own threads.
        cache: Cached answers; None disables the cache.
        rate_limits: Counts the cost of the requests of each API key.
        metrics: Counts dropped requests, rate limits and stages.
        tracer: Records spans; None if tracing is off.
        log_queries: Fraction of the queries to log, with their answers.
        max_query_bytes: Maximum size of a query (UTF-8).
        max_seconds: Time after which every request has passed its deadline.
        follow_log: Starts to read the log of the live memory.
    """

    versions: OpenVersions
    batcher: Batcher
    cache: AnswerCache | None
    rate_limits: RateLimits
    metrics: Metrics
    tracer: Tracer | None
    log_queries: float
    max_query_bytes: int
    max_seconds: float
    follow_log: Callable[[], None]

    async def answer(
        self,
        queries: list[str],
        chosen: Mapping[str, Any],
        quota: Quota | None,
        disconnected: Callable[[], Awaitable[None]],
        version: str | None = None,
        timeout_ms: int | None = None,
        min_sequence: int = 0,
        use_cache: bool = True,
    ) -> tuple[str, Computed]:
        """Answer the queries of a request. One version answers all of them.

        Args:
            queries: One query, or a batch.
            chosen: Arguments of `resolve_options` that the caller chose.
            quota: The API key; None without API keys.
            disconnected: Returns once the client has disconnected.
            version: The open version that answers; None means the current version.
            timeout_ms: Time until the deadline, in milliseconds; None means the longest time that the service allows.
            min_sequence: Sequence number of the last change that the answer must know.
            use_cache: Whether cached answers may be used. They are JSON only.

        Returns:
            The version, and its answers.

        Raises:
            QueryTooLargeError: If a query has too many bytes.
            NotReadyError: If no bundle is loaded.
            VersionNotOpenError: If the request names a version that is not open.
            QueryError: If the request asks to explain too many keys, or for probabilities that the version lacks.
            RateLimitError: If the API key exceeds its rate.
            SequenceError: If this process does not know the required change of the memory yet.
            DeadlineError: If the deadline passes.
            OverloadError: If the queue is full.
            DrainingError: If the service stops before the answer is complete.
            ClientDisconnect: If the client disconnects.
        """
        self._check_sizes(queries)
        seconds = self.max_seconds if timeout_ms is None else min(timeout_ms / 1000, self.max_seconds)
        lease = self.versions.lease(version)
        with lease as predictor:
            options = checked_options(predictor.manifest, **chosen)
            _check_explained_keys(options, len(queries))
            cost, start = request_cost(queries, options), time.perf_counter()
            try:
                async with asyncio.timeout(seconds):
                    if quota is not None and quota.rate:
                        await self.charge(quota, cost)
                    if predictor.memory.sequence < min_sequence:
                        await self._wait_for(min_sequence, predictor)
                    cache = self.cache if use_cache else None
                    found = await self._look_up_or_compute(cache, lease, queries, options, cost, disconnected)
            except TimeoutError:
                self.metrics.dropped.labels("deadline").inc()
                self.metrics.count_outcome(predictor.version, "deadline")
                longer = f"increase timeout_ms (at most {1e3 * self.max_seconds:.0f}), or "
                raise DeadlineError(
                    f"timeout_ms: the answer took longer than {1e3 * seconds:.0f} ms; "
                    f"{longer if seconds < self.max_seconds else ''}reduce top_b or the number of queries"
                ) from None
            except (ServiceError, ClientDisconnect):  # not a fault of the version
                raise
            except Exception:
                self.metrics.count_outcome(predictor.version, "failed")
                raise
            self.metrics.count_outcome(predictor.version, "answered", time.perf_counter() - start)
            if self.log_queries:
                self._log_sample(predictor.version, queries, found.answers)
            return predictor.version, found

    def _check_sizes(self, queries: Sequence[str]) -> None:
        for row, query in enumerate(queries):
            if (found := len(query.encode())) > self.max_query_bytes:
                name = "query" if len(queries) == 1 else f"queries.{row}"
                raise QueryTooLargeError(
                    f"{name}: expected at most {self.max_query_bytes:,} bytes, found {found:,}; send a shorter text"
                )

    async def charge(self, quota: Quota, cost: int) -> None:
        """Count the cost of a request towards the rate limit of an API key.

        Raises:
            RateLimitError: If the API key exceeds its rate.
        """
        if wait := await self.rate_limits.wait_seconds(quota, cost):
            self.metrics.rate_limited.labels(quota.name).inc()
            raise RateLimitError(
                f"key {quota.name}: the limit is {quota.rate:g} normal queries per second, and this request counts as "
                f"{cost:,}; retry in {wait:.1f} s",
                wait,
            )

    async def _wait_for(self, sequence: int, predictor: Predictor) -> None:
        """Wait until the memory knows a change.

        Raises:
            SequenceError: If it does not know the change in time.
        """
        self.follow_log()
        deadline = time.monotonic() + _FOLLOW_SECONDS
        while predictor.memory.sequence < sequence:
            if time.monotonic() > deadline:
                raise SequenceError(
                    f"min_sequence: expected a change that this replica knows, at most {predictor.memory.sequence}, "
                    f"found {sequence}; repeat the request later"
                )
            await asyncio.sleep(_CHECK_SECONDS)

    async def _look_up_or_compute(
        self,
        cache: AnswerCache | None,
        lease: Lease,
        queries: list[str],
        options: AnswerOptions,
        cost: int,
        disconnected: Callable[[], Awaitable[None]],
    ) -> Computed:
        """Take answers from the cache; compute the missing answers and put them into the cache."""
        memory = lease.predictor.memory
        keys = answer_keys(lease.predictor.version, memory.sequence, memory.digest, options, queries) if cache else None
        if cache is None or keys is None:
            return await self._compute(lease, queries, options, cost, disconnected)
        start = time.perf_counter()
        json = await cache.get(keys)
        answers: list[Answer | None] = [None] * len(queries)
        milliseconds = {"cache": 1e3 * (time.perf_counter() - start)}
        if missing := [row for row, cached in enumerate(json) if cached is None]:
            computed = await self._compute(lease, [queries[row] for row in missing], options, cost, disconnected)
            if computed.sequence != memory.sequence:  # the memory has changed meanwhile
                if len(missing) == len(queries):
                    return computed
                return await self._compute(lease, queries, options, cost, disconnected)
            for row, content, answer in zip(missing, computed.json, computed.answers, strict=True):
                json[row], answers[row] = content, answer
            cache.put({keys[row]: content for row, content in zip(missing, computed.json, strict=True)})
            milliseconds = computed.milliseconds
        return Computed([content for content in json if content is not None], answers, milliseconds, memory.sequence)

    async def _compute(
        self,
        lease: Lease,
        queries: list[str],
        options: AnswerOptions,
        cost: int,
        disconnected: Callable[[], Awaitable[None]],
    ) -> Computed:
        """Let the batcher compute answers.

        A request that is dropped before its computation starts is not computed. A computation for which no request
        waits any more is stopped.

        Raises:
            ClientDisconnect: If the client disconnects first.
        """
        future = self.batcher.submit(lease, queries, options, cost)
        gone: asyncio.Future[Any] | None = None
        try:
            await asyncio.wait([future], timeout=_WATCH_AFTER_SECONDS)
            if not future.done():  # most requests are answered sooner
                gone = asyncio.ensure_future(disconnected())
                await asyncio.wait(list[asyncio.Future[Any]]((future, gone)), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                self.metrics.dropped.labels("gone").inc()
                raise ClientDisconnect
            computed = future.result()
        finally:
            future.cancel()
            if gone is not None:
                gone.cancel()
        if self.tracer is not None:
            self.tracer.stages(computed.milliseconds)
        return computed

    def _log_sample(self, version: str, queries: Sequence[str], answers: Sequence[Answer | None]) -> None:
        """Log a random sample of queries. A query whose answer was in the cache is logged without labels.

        The log of queries is off by default, because queries may contain personal data.
        """
        for query, answer in zip(queries, answers, strict=True):
            if random.random() < self.log_queries:
                labels = None if answer is None else {label.uid: label.score for label in answer.labels}
                log.info("query", query=query, labels=labels, version=version)


def _check_explained_keys(options: AnswerOptions, queries: int) -> None:
    if options.explain and queries * options.top_b > _MAX_EXPLAINED_KEYS:
        raise QueryError(
            f"explain: expected at most {_MAX_EXPLAINED_KEYS:,} keys to explain, found {queries:,} x top_b "
            f"{options.top_b:,}; reduce top_b or the number of queries"
        )
