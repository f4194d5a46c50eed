"""The path of a request, from its queries to their answers in JSON.

The steps: lease the current predictor, resolve the options, count the queries for the rate limit, look up the answer
cache, and compute the missing answers.
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

from service.errors import DeadlineError, QueryError, RateLimitError
from service.options import AnswerOptions, resolve_options
from service.predictor.predictor import Answers
from service.serving.answer_cache import AnswerCache, answer_keys
from service.serving.batcher import Batcher
from service.serving.rate_limit import Quota, RateLimits
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import Tracer
from service.versions.leases import Lease
from service.versions.model_manager import ModelManager

log = structlog.get_logger(__name__)

# Maximum number of keys to explain in one request, over all its queries. The explanation of one key may contain several
# labels with their texts.
_MAX_EXPLAINED_KEYS = 2_000
# After this time, the service starts to check whether the client of a request has disconnected. Most requests are
# answered sooner.
_WATCH_AFTER_SECONDS = 0.1


@dataclass(frozen=True)
class AnswerRequest:
    """A request, independent of HTTP.

    Attributes:
        queries: One query, or a batch. The same version answers all queries of a batch.
        chosen: Arguments of `resolve_options` that the caller chose.
        timeout_ms: Time until the deadline, in milliseconds; None sets no deadline.
        quota: Rate limit of the caller's API key; None if there is no key.
        disconnected: Returns once the client has disconnected.
    """

    queries: list[str]
    chosen: Mapping[str, Any]
    timeout_ms: int | None
    quota: Quota | None
    disconnected: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class JsonAnswers:
    """Each query's answer as a JSON object, and the milliseconds of each stage."""

    answers: list[bytes]
    milliseconds: Mapping[str, float]


@dataclass(frozen=True)
class AnswerPipeline:
    """Answers requests.

    Attributes:
        model_manager: Leases the current version.
        batcher: Computes answers on its own threads.
        cache: Cached answers; None disables the cache.
        rate_limits: Counts the queries of each API key.
        metrics: Counts dropped requests, rate limits and stages.
        tracer: Records spans; None if tracing is off.
        log_queries: Fraction of the queries to log, with their answers.
    """

    model_manager: ModelManager
    batcher: Batcher
    cache: AnswerCache | None
    rate_limits: RateLimits
    metrics: Metrics
    tracer: Tracer | None
    log_queries: float

    async def answer(self, request: AnswerRequest) -> tuple[str, JsonAnswers]:
        """Answer a request with the current version.

        Returns:
            The version, and its answers.

        Raises:
            NotReadyError: If no bundle is loaded.
            QueryError: If the request asks to explain too many keys.
            RateLimitError: If the API key exceeds its rate.
            DeadlineError: If the deadline passes.
            OverloadError: If the queue is full.
            ClientDisconnect: If the client disconnects.
        """
        lease = self.model_manager.lease()  # one version answers the whole request
        with lease as predictor:
            options = resolve_options(predictor.defaults, **request.chosen)
            _check_explained_keys(options, len(request.queries))
            try:
                async with asyncio.timeout(None if request.timeout_ms is None else request.timeout_ms / 1000):
                    await self._charge(request.quota, len(request.queries))
                    found = await self._look_up_or_compute(lease, options, request)
            except TimeoutError:
                self.metrics.dropped.labels("deadline").inc()
                raise DeadlineError(
                    f"timeout_ms: the answer took longer than {request.timeout_ms} ms; "
                    "increase timeout_ms, or reduce top_b or the number of queries"
                ) from None
            if self.log_queries:
                self._log_sample(predictor.version, request.queries, found.answers)
            return predictor.version, found

    async def _charge(self, quota: Quota | None, queries: int) -> None:
        """Count queries towards the rate limit of an API key."""
        if quota is None or not quota.rate:
            return
        if wait := await self.rate_limits.wait_seconds(quota, queries):
            self.metrics.rate_limited.labels(quota.name).inc()
            raise RateLimitError(
                f"key {quota.name}: the limit is {quota.rate:g} queries per second; retry in {wait:.1f} s", wait
            )

    async def _look_up_or_compute(self, lease: Lease, options: AnswerOptions, request: AnswerRequest) -> JsonAnswers:
        """Take answers from the cache; compute the missing answers and put them into the cache."""
        start, queries = time.perf_counter(), request.queries
        keys = answer_keys(lease.predictor.version, options, queries) if self.cache else None
        if self.cache is None or keys is None:
            return await self._compute(lease, queries, options, request.disconnected)
        found = await self.cache.get(keys)
        milliseconds: Mapping[str, float] = {"cache": 1e3 * (time.perf_counter() - start)}
        if missing := [row for row, answer in enumerate(found) if answer is None]:
            computed = await self._compute(lease, [queries[row] for row in missing], options, request.disconnected)
            milliseconds = computed.milliseconds
            for row, answer in zip(missing, computed.answers, strict=True):
                found[row] = answer
            self.cache.put({keys[row]: answer for row, answer in zip(missing, computed.answers, strict=True)})
        return JsonAnswers([answer for answer in found if answer is not None], milliseconds)

    async def _compute(
        self, lease: Lease, queries: list[str], options: AnswerOptions, disconnected: Callable[[], Awaitable[None]]
    ) -> JsonAnswers:
        """Compute answers on the batcher's threads.

        A request that is dropped before its computation starts is not computed.
        """
        self.model_manager.record(queries[0])
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
        return JsonAnswers([to_json(answer.to_dict()) for answer in answers.answers], answers.milliseconds)

    async def _wait_while_connected(
        self, future: asyncio.Future[JsonAnswers], disconnected: Callable[[], Awaitable[None]]
    ) -> JsonAnswers:
        """Wait for answers.

        Raises:
            ClientDisconnect: If the client disconnects first.
        """
        await asyncio.wait([future], timeout=_WATCH_AFTER_SECONDS)
        if not future.done():
            watch: asyncio.Future[Any] = asyncio.ensure_future(disconnected())
            try:
                await asyncio.wait({future, watch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.cancel()
            if not future.done():
                self.metrics.dropped.labels("gone").inc()
                raise ClientDisconnect
        return future.result()

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
