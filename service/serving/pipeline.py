"""The path of a request, from its queries to their answers in JSON.

The steps: check the sizes, lease the current predictor, resolve the options, count the cost for the rate limit, wait
for the required changes of the memory, look up the answer cache, and compute the missing answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from recollect.service.errors import (
    DeadlineError,
    QueryError,
    QueryTooLargeError,
    RateLimitError,
    SequenceError,
    ServiceError,
)
from recollect.service.options import AnswerOptions, request_cost
from recollect.service.predictor.answers import Answers
from recollect.service.predictor.predictor import Predictor
from recollect.service.serving.answer_cache import AnswerCache, answer_keys
from recollect.service.serving.batcher import Batcher
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
class AnswerRequest:
    """A request, independent of HTTP.

    Attributes:
        queries: One query, or a batch. The same version answers all queries of a batch.
        version: The open version that answers; None means the current version.
        chosen: Arguments of `resolve_options` that the caller chose.
        timeout_ms: Time until the deadline, in milliseconds; None means the longest time that the service allows.
        min_sequence: Sequence number of the last change that the answer must know.
        quota: Rate limit of the caller's API key; None if there is no key.
        disconnected: Returns once the client has disconnected.
    """

    queries: list[str]
    version: str | None
    chosen: Mapping[str, Any]
    timeout_ms: int | None
    min_sequence: int
    quota: Quota | None
    disconnected: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class JsonAnswers:
    """The answers to one request.

    Attributes:
        answers: Each query's answer as a JSON object.
        milliseconds: The milliseconds of each stage.
        sequence: Sequence number of the last change of the memory that answered.
    """

    answers: list[bytes]
    milliseconds: Mapping[str, float]
    sequence: int


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

    async def answer(self, request: AnswerRequest) -> tuple[str, JsonAnswers]:
        """Answer a request with the version that it names, otherwise with the current version.

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
        self._check_sizes(request.queries)
        seconds = self.max_seconds if request.timeout_ms is None else min(request.timeout_ms / 1000, self.max_seconds)
        lease = self.versions.lease(request.version)  # one version answers the whole request
        with lease as predictor:
            options = predictor.resolve(**request.chosen)
            _check_explained_keys(options, len(request.queries))
            start = time.perf_counter()
            try:
                async with asyncio.timeout(seconds):
                    if request.quota is not None and request.quota.rate:
                        await self.charge(request.quota, request_cost(request.queries, options))
                    await self._wait_for(request.min_sequence, predictor)
                    found = await self._look_up_or_compute(lease, options, request)
            except TimeoutError:
                self.metrics.dropped.labels("deadline").inc()
                self.metrics.version_requests.labels(predictor.version, "deadline").inc()
                longer = f"increase timeout_ms (at most {1e3 * self.max_seconds:.0f}), or "
                raise DeadlineError(
                    f"timeout_ms: the answer took longer than {1e3 * seconds:.0f} ms; "
                    f"{longer if seconds < self.max_seconds else ''}reduce top_b or the number of queries"
                ) from None
            except (ServiceError, ClientDisconnect):  # not a fault of the version
                raise
            except Exception:
                self.metrics.version_requests.labels(predictor.version, "failed").inc()
                raise
            self.metrics.version_requests.labels(predictor.version, "answered").inc()
            self.metrics.version_seconds.labels(predictor.version).observe(time.perf_counter() - start)
            if self.log_queries:
                self._log_sample(predictor.version, request.queries, found.answers)
            return predictor.version, found

    def _check_sizes(self, queries: Sequence[str]) -> None:
        for row, query in enumerate(queries):
            if len(query) > self.max_query_bytes or (found := len(query.encode())) > self.max_query_bytes:
                found = len(query.encode())
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
        if predictor.memory.sequence >= sequence:
            return
        self.follow_log()
        deadline = time.monotonic() + _FOLLOW_SECONDS
        while predictor.memory.sequence < sequence:
            if time.monotonic() > deadline:
                raise SequenceError(
                    f"min_sequence: expected a change that this replica knows, at most {predictor.memory.sequence}, "
                    f"found {sequence}; repeat the request later"
                )
            await asyncio.sleep(_CHECK_SECONDS)

    async def _look_up_or_compute(self, lease: Lease, options: AnswerOptions, request: AnswerRequest) -> JsonAnswers:
        """Take answers from the cache; compute the missing answers and put them into the cache."""
        start, queries, predictor = time.perf_counter(), request.queries, lease.predictor
        memory = predictor.memory
        sequence = memory.sequence
        keys = answer_keys(predictor.version, sequence, memory.digest, options, queries) if self.cache else None
        if self.cache is None or keys is None:
            return await self._compute(lease, queries, options, request.disconnected)
        found = await self.cache.get(keys)
        missing = [row for row, answer in enumerate(found) if answer is None]
        if not missing:
            spent = {"cache": 1e3 * (time.perf_counter() - start)}
            return JsonAnswers([answer for answer in found if answer is not None], spent, sequence)
        computed = await self._compute(lease, [queries[row] for row in missing], options, request.disconnected)
        if computed.sequence != sequence:  # the memory has changed meanwhile
            if len(missing) == len(queries):
                return computed
            return await self._compute(lease, queries, options, request.disconnected)
        for row, answer in zip(missing, computed.answers, strict=True):
            found[row] = answer
        self.cache.put({keys[row]: answer for row, answer in zip(missing, computed.answers, strict=True)})
        return JsonAnswers([answer for answer in found if answer is not None], computed.milliseconds, sequence)

    async def _compute(
        self, lease: Lease, queries: list[str], options: AnswerOptions, disconnected: Callable[[], Awaitable[None]]
    ) -> JsonAnswers:
        """Compute answers on the batcher's threads.

        A request that is dropped before its computation starts is not computed. A computation for which no request
        waits any more is stopped.
        """
        future = self.batcher.submit(lease, queries, options, self._serialise)
        try:
            computed = await self._wait_while_connected(future, disconnected)
        finally:
            future.cancel()
        if self.tracer is not None:
            self.tracer.stages(computed.milliseconds)
        return computed

    def _serialise(self, answers: Answers) -> JsonAnswers:
        """Serialise answers to JSON, on the thread that computed the answers."""
        for stage, spent in answers.milliseconds.items():
            self.metrics.stage_seconds.labels(stage).observe(spent / 1e3)
        return JsonAnswers(
            [to_json(answer.to_dict()) for answer in answers.answers], answers.milliseconds, answers.sequence
        )

    async def _wait_while_connected(
        self, future: asyncio.Future[JsonAnswers], disconnected: Callable[[], Awaitable[None]]
    ) -> JsonAnswers:
        """Wait for answers.

        Raises:
            ClientDisconnect: If the client disconnects first.
        """
        watches: list[asyncio.Task[None]] = []  # empty for most requests, which are answered sooner

        def watch() -> None:
            watches.append(asyncio.ensure_future(self._fail_if_gone(future, disconnected)))

        timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, watch)
        try:
            return await future
        finally:
            timer.cancel()
            for each in watches:
                each.cancel()

    async def _fail_if_gone(
        self, future: asyncio.Future[JsonAnswers], disconnected: Callable[[], Awaitable[None]]
    ) -> None:
        """Fail a future once the client has disconnected."""
        await disconnected()
        if not future.done():
            self.metrics.dropped.labels("gone").inc()
            future.set_exception(ClientDisconnect())

    def _log_sample(self, version: str, queries: Sequence[str], answers: Sequence[bytes]) -> None:
        """Log a random sample of queries.

        The log of queries is off by default, because queries may contain personal data.
        """
        for query, answer in zip(queries, answers, strict=True):
            if random.random() < self.log_queries:
                labels = {label["uid"]: label["score"] for label in json.loads(answer)["labels"]}
                log.info("query", query=query, labels=labels, version=version)


def _check_explained_keys(options: AnswerOptions, queries: int) -> None:
    if options.explain and queries * options.top_b > _MAX_EXPLAINED_KEYS:
        raise QueryError(
            f"explain: expected at most {_MAX_EXPLAINED_KEYS:,} keys to explain, found {queries:,} x top_b "
            f"{options.top_b:,}; reduce top_b or the number of queries"
        )
