"""The endpoints. Each takes the current predictor once, so that one version gives the whole answer."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Request, Response
from starlette.requests import ClientDisconnect

from service.access import ApiKey, RateLimits
from service.cache import KeptAnswers, answer_keys
from service.live import Live
from service.predictor import Answers, Options, Predictor
from service.problems import ProblemError, documented
from service.redis_link import RedisLink
from service.schemas import (
    Health,
    LabelResponse,
    PredictBatchRequest,
    PredictBatchResponse,
    PredictRequest,
    PredictResponse,
    Result,
    VersionResponse,
)
from service.stopwatch import Stopwatch
from service.telemetry import CONTENT_TYPE, Telemetry

log = structlog.get_logger(__name__)

router = APIRouter()

# Keys that one request may have explained, over all its queries: each may name several labels, each with a text.
_EXPLAINED_KEYS = 2_000
# How long a request waits before anyone looks whether its client still does.
_PATIENCE_SECONDS = 0.1


async def _live(request: Request) -> Live:  # a plain function would be sent to a thread, and cost more than it does
    live: Live = request.app.state.live
    return live


LiveDependency = Annotated[Live, Depends(_live)]


@router.post("/predict", response_model=PredictResponse, responses=documented(401, 413, 422, 429, 503, 504))
async def predict(body: PredictRequest, live: LiveDependency, request: Request) -> Response:
    """The labels that fit a query best."""
    predictor = live.predictor()
    answers, headers = await _answer(predictor, [body.query], body, request)
    return _json(b'{"version":"%b",%b' % (predictor.version.encode(), answers[0][1:]), headers)


@router.post("/predict/batch", response_model=PredictBatchResponse, responses=documented(401, 413, 422, 429, 503, 504))
async def predict_batch(body: PredictBatchRequest, live: LiveDependency, request: Request) -> Response:
    """The labels that fit each of several queries best."""
    limit: int = request.app.state.settings.max_batch
    if len(body.queries) > limit:
        raise ProblemError(413, f"queries: expected at most {limit}, found {len(body.queries):,}", "batch_too_large")
    predictor = live.predictor()
    answers, headers = await _answer(predictor, body.queries, body, request)
    return _json(b'{"version":"%b","results":[%b]}' % (predictor.version.encode(), b",".join(answers)), headers)


@router.get("/labels/{uid:path}", response_model=LabelResponse, responses=documented(401, 404, 503))
async def label(uid: str, live: LiveDependency, response: Response) -> LabelResponse:
    """A label's text, and how many training instances have it."""
    predictor = live.predictor()
    labels = predictor.bundle.labels
    position = labels.position(uid)
    if position is None:
        raise ProblemError(404, f"label {uid[:80]!r} is unknown to version {predictor.version}", "unknown_label")
    response.headers["X-Index-Version"] = predictor.version
    count = int(labels.counts[position])
    return LabelResponse(version=predictor.version, uid=uid, text=labels.texts[position], training_count=count)


@router.get("/version", response_model=VersionResponse, responses=documented(401, 503))
async def version(live: LiveDependency, response: Response) -> VersionResponse:
    """What is served, and since when."""
    predictor, since = live.serving()
    response.headers["X-Index-Version"] = predictor.version
    manifest = {name: getattr(predictor.manifest, name) for name in VersionResponse.model_fields if name != "since"}
    return VersionResponse(since=since, **manifest)


@router.get("/health/live", response_model=Health, response_model_exclude_none=True)
async def health_live() -> Health:
    """The process answers."""
    return Health(status="live")


@router.get("/health/ready", response_model=Health, response_model_exclude_none=True, responses=documented(503))
async def health_ready(live: LiveDependency, request: Request) -> Health:
    """A bundle is loaded and has answered; `degraded` names what the service does without."""
    if live.draining:
        raise ProblemError(503, "the service is stopping; ask another replica", "draining")
    live.predictor()
    link: RedisLink | None = request.app.state.link
    return Health(status="ready", degraded=[link.problem] if link and link.problem else None)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text format."}})
async def metrics(request: Request) -> Response:
    """Requests, latencies, queue, batches, kept answers, swaps and the version, over all workers."""
    telemetry: Telemetry = request.app.state.telemetry
    return Response(telemetry.exposition(), media_type=CONTENT_TYPE)


async def _answer(
    predictor: Predictor, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> tuple[list[bytes], dict[str, str]]:
    """Each query's answer as JSON, and what to say of them in headers; what is kept is not made again."""
    top_b = body.top_b or predictor.manifest.defaults.top_b
    if body.explain and len(queries) * top_b > _EXPLAINED_KEYS:
        raise ProblemError(
            422,
            f"explain: expected at most {_EXPLAINED_KEYS:,} keys to explain, found {len(queries):,} x top_b "
            f"{top_b:,}; ask for fewer",
        )
    await _charge(request, len(queries))
    try:
        async with asyncio.timeout(None if body.timeout_ms is None else body.timeout_ms / 1000):
            answers, milliseconds = await _kept_or_made(predictor, queries, body, request)
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
    predictor: Predictor, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> tuple[list[bytes], Mapping[str, float]]:
    """Each query's answer, and the milliseconds each stage took."""
    watch = Stopwatch()
    kept: KeptAnswers | None = request.app.state.kept
    keys = _keys(predictor, queries, body) if kept else None
    found: list[bytes | None] = await kept.get(keys) if kept and keys else [None] * len(queries)
    lacking = [nth for nth, answer in enumerate(found) if answer is None]
    watch.lap("cache")
    if not lacking:
        return [answer for answer in found if answer is not None], watch.stages
    made = await _make(predictor, [queries[nth] for nth in lacking], body, request)
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
    predictor: Predictor, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> _Made:
    """Answer off the event loop; what nobody waits for before it is begun never is."""
    state = request.app.state

    def as_json(answers: Answers) -> _Made:
        state.telemetry.stages(answers.milliseconds)
        made = [Result.of(answer).model_dump_json(exclude_none=True).encode() for answer in answers.answers]
        return _Made(made, answers.milliseconds)

    state.live.record(queries[0])
    answer = state.batcher.submit(predictor, queries, _options(predictor, body), as_json)
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


def _options(predictor: Predictor, body: PredictRequest | PredictBatchRequest) -> Options:
    """The request's options; the bundle's own where it says nothing."""
    return predictor.options(
        lambda_=body.lambda_,
        temperature=body.temperature,
        top_b=body.top_b,
        top_k=body.top_k,
        threshold=body.threshold,
        explain=body.explain,
        allow=None if body.allow is None else tuple(body.allow),
        deny=tuple(body.deny or ()),
    )


def _keys(predictor: Predictor, queries: list[str], body: PredictRequest | PredictBatchRequest) -> list[bytes] | None:
    """What the answers are kept under: all that decides them, said by the request or not."""
    defaults = predictor.manifest.defaults
    chosen = [
        defaults.lambda_ if body.lambda_ is None else body.lambda_,
        body.temperature or defaults.temperature,
        body.top_b or defaults.top_b,
        body.top_k or defaults.top_k,
        body.threshold,
        body.explain,
        None if body.allow is None else sorted({*body.allow}),
        sorted({*(body.deny or [])}),
    ]
    return answer_keys(predictor.version, chosen, [*(body.allow or []), *(body.deny or [])], queries)


def _log_sample(predictor: Predictor, queries: list[str], answers: list[bytes], request: Request) -> None:
    """Log a share of the queries, where that is switched on: queries are people's words."""
    share: float = request.app.state.settings.log_queries
    for query, answer in zip(queries, answers, strict=True) if share else ():
        if random.random() < share:
            labels = {label["uid"]: label["score"] for label in json.loads(answer)["labels"]}
            log.info("query", query=query, labels=labels, version=predictor.version)


def _json(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type="application/json", headers=headers)
