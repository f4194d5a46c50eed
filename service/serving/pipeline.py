"""How a request becomes answers: charged to its key, looked up among what is kept, and made where it must be.

Making is done off the event loop, and dropped when nobody waits for it any more.

An answer is one query's labels as JSON, the same bytes whether they are kept, sent alone or sent in a batch.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.http.auth import ApiKey, RateLimits
from service.http.problems import ProblemError
from service.http.schemas import PredictBatchRequest, PredictRequest, Result
from service.options import AnswerOptions, resolve_options
from service.predictor.predictor import Answers, Predictor
from service.serving.answer_cache import KeptAnswers, answer_keys
from service.telemetry.stopwatch import Stopwatch
from service.versions.leases import Lease

log = structlog.get_logger(__name__)

# Keys that one request may have explained, over all its queries: each may name several labels, each with a text.
_EXPLAINED_KEYS = 2_000
# How long a request waits before anyone looks whether its client still does.
_PATIENCE_SECONDS = 0.1


async def answer_queries(
    lease: Lease, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> tuple[list[bytes], dict[str, str]]:
    """Each query's answer as JSON, and what to say of them in headers.

    Args:
        lease: Of the version that gives the whole answer.
        queries: One, or a batch.
        body: How they are to be answered.
        request: Whose client waits.

    Raises:
        ProblemError: If too much is to be explained, the key is over its rate, or the time is up.
        OverloadError: If too many queries wait already.
        ClientDisconnect: If the client has gone.
    """
    predictor = lease.predictor
    top_b = body.top_b or predictor.manifest.defaults.top_b
    if body.explain and len(queries) * top_b > _EXPLAINED_KEYS:
        raise ProblemError(
            422,
            f"explain: expected at most {_EXPLAINED_KEYS:,} keys to explain, found {len(queries):,} x top_b "
            f"{top_b:,}; ask for fewer",
        )
    try:
        async with asyncio.timeout(None if body.timeout_ms is None else body.timeout_ms / 1000):
            await _charge(request, len(queries))
            answers, milliseconds = await _kept_or_made(lease, queries, body, request)
    except TimeoutError:
        request.app.state.telemetry.dropped("deadline")
        raise ProblemError(504, f"no answer within timeout_ms {body.timeout_ms}; allow more, or ask less") from None
    _log_sample(predictor, queries, answers, request)
    stages = (f"{stage};dur={spent:.3f}" for stage, spent in milliseconds.items())
    return answers, {"X-Index-Version": predictor.version, "Server-Timing": ", ".join(stages)}


async def _charge(request: Request, queries: int) -> None:
    """Count queries towards their key's rate."""
    key: ApiKey | None = request.scope.get("api_key")
    if key is None:
        return
    limits: RateLimits = request.app.state.limits
    if wait := await limits.wait_seconds(key, queries):
        request.app.state.telemetry.rate_limited(key.name)
        raise ProblemError(
            429,
            f"expected at most {key.rate:g} queries a second from {key.name}, found more; ask again in {wait:.1f} s",
            headers={"Retry-After": str(math.ceil(wait))},
        )


async def _kept_or_made(
    lease: Lease, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> tuple[list[bytes], Mapping[str, float]]:
    """Each query's answer, and the milliseconds each stage took."""
    watch, predictor = Stopwatch(), lease.predictor
    kept: KeptAnswers | None = request.app.state.kept
    keys = _keys(predictor, queries, body) if kept else None
    found: list[bytes | None] = await kept.get(keys) if kept and keys else [None] * len(queries)
    lacking = [nth for nth, answer in enumerate(found) if answer is None]
    watch.lap("cache")
    if not lacking:
        return [answer for answer in found if answer is not None], watch.stages
    made = await _make(lease, [queries[nth] for nth in lacking], body, request)
    for nth, answer in zip(lacking, made.answers, strict=True):
        found[nth] = answer
    if kept and keys:
        kept.put({keys[nth]: answer for nth, answer in zip(lacking, made.answers, strict=True)})
    return [answer for answer in found if answer is not None], made.milliseconds


@dataclass(frozen=True)
class _Made:
    answers: list[bytes]
    milliseconds: Mapping[str, float]


async def _make(
    lease: Lease, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> _Made:
    """Answer off the event loop; what nobody waits for before it is begun never is."""
    state = request.app.state

    def as_json(answers: Answers) -> _Made:
        state.telemetry.stages(answers.milliseconds)
        made = [Result.of(answer).model_dump_json(exclude_none=True).encode() for answer in answers.answers]
        return _Made(made, answers.milliseconds)

    state.live.record(queries[0])
    answer = state.batcher.submit(lease, queries, _options(lease.predictor, body), as_json)
    try:
        made: _Made = await _while_wanted(answer, request)
    finally:
        answer.cancel()
    state.tracer.stages(made.milliseconds)
    return made


async def _while_wanted(answer: asyncio.Future[_Made], request: Request) -> _Made:
    """The answer, as long as its client stays; whether it does is looked after once it has waited for a while.

    Raises:
        ClientDisconnect: If it has gone.
    """
    await asyncio.wait([answer], timeout=_PATIENCE_SECONDS)
    if not answer.done():
        gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not answer.done():
            request.app.state.telemetry.dropped("gone")
            raise ClientDisconnect
    return answer.result()


async def _gone(request: Request) -> None:
    """Return once the client has left: with the body read, there is no other message to come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _options(predictor: Predictor, body: PredictRequest | PredictBatchRequest) -> AnswerOptions:
    return resolve_options(
        predictor.defaults,
        lambda_=body.lambda_,
        temperature=body.temperature,
        top_b=body.top_b,
        top_k=body.top_k,
        threshold=body.threshold,
        allow=body.allow,
        deny=body.deny,
        explain=body.explain,
    )


def _keys(predictor: Predictor, queries: list[str], body: PredictRequest | PredictBatchRequest) -> list[bytes] | None:
    """What the answers are kept under: all that decides them, said by the request or not."""
    defaults, allow, deny = predictor.manifest.defaults, body.allow or [], body.deny or []

    def options() -> list[Any]:
        return [
            defaults.lambda_ if body.lambda_ is None else body.lambda_,
            body.temperature or defaults.temperature,
            body.top_b or defaults.top_b,
            body.top_k or defaults.top_k,
            body.threshold,
            body.explain,
            None if body.allow is None else sorted({*allow}),
            sorted({*deny}),
        ]

    return answer_keys(predictor.version, options, len(allow) + len(deny), queries)


def _log_sample(predictor: Predictor, queries: list[str], answers: list[bytes], request: Request) -> None:
    """Log a share of the queries, where that is switched on: queries are people's words."""
    share: float = request.app.state.settings.log_queries
    for query, answer in zip(queries, answers, strict=True) if share else ():
        if random.random() < share:
            labels = {label["uid"]: label["score"] for label in json.loads(answer)["labels"]}
            log.info("query", query=query, labels=labels, version=predictor.version)
