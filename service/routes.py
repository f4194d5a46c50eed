"""The endpoints. Each takes the current predictor once, so that one version gives the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from service.batcher import Batcher
from service.live import Live
from service.predictor import Answers, Options, Predictor
from service.problems import ProblemError, documented
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

router = APIRouter()

# Keys that one request may have explained, over all its queries: each may name several labels, each with a text.
_EXPLAINED_KEYS = 2_000
# How long a request waits before anyone looks whether its client still does.
_PATIENCE_SECONDS = 0.1
# What nobody reads: the status that nginx logs for clients that closed their connection.
_CLIENT_GONE = 499


async def _live(request: Request) -> Live:  # a plain function would be sent to a thread, and cost more than it does
    live: Live = request.app.state.live
    return live


LiveDependency = Annotated[Live, Depends(_live)]


@router.post("/predict", response_model=PredictResponse, responses=documented(413, 422, 503, 504))
async def predict(body: PredictRequest, live: LiveDependency, request: Request) -> Response:
    """The labels that fit a query best."""
    predictor = live.predictor()

    def compose(results: list[Result]) -> BaseModel:
        return PredictResponse(version=predictor.version, **dict(results[0]))

    return await _answer(predictor, [body.query], body, request, compose)


@router.post("/predict/batch", response_model=PredictBatchResponse, responses=documented(413, 422, 503, 504))
async def predict_batch(body: PredictBatchRequest, live: LiveDependency, request: Request) -> Response:
    """The labels that fit each of several queries best."""
    limit: int = request.app.state.max_batch
    if len(body.queries) > limit:
        raise ProblemError(413, f"queries: expected at most {limit}, found {len(body.queries):,}", "batch_too_large")
    predictor = live.predictor()

    def compose(results: list[Result]) -> BaseModel:
        return PredictBatchResponse(version=predictor.version, results=results)

    return await _answer(predictor, body.queries, body, request, compose)


@router.get("/labels/{uid:path}", response_model=LabelResponse, responses=documented(404, 503))
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


@router.get("/version", response_model=VersionResponse, responses=documented(503))
async def version(live: LiveDependency, response: Response) -> VersionResponse:
    """What is served, and since when."""
    predictor, since = live.serving()
    response.headers["X-Index-Version"] = predictor.version
    manifest = {name: getattr(predictor.manifest, name) for name in VersionResponse.model_fields if name != "since"}
    return VersionResponse(since=since, **manifest)


@router.get("/health/live", response_model=Health)
async def health_live() -> Health:
    """The process answers."""
    return Health(status="live")


@router.get("/health/ready", response_model=Health, responses=documented(503))
async def health_ready(live: LiveDependency) -> Health:
    """A bundle is loaded and has answered."""
    live.predictor()
    return Health(status="ready")


async def _answer(
    predictor: Predictor,
    queries: list[str],
    body: PredictRequest | PredictBatchRequest,
    request: Request,
    compose: Callable[[list[Result]], BaseModel],
) -> Response:
    """Answer and compose off the event loop; a request whose time is up before it is begun never is."""
    top_b = body.top_b or predictor.manifest.defaults.top_b
    if body.explain and len(queries) * top_b > _EXPLAINED_KEYS:
        raise ProblemError(
            422,
            f"explain: expected at most {_EXPLAINED_KEYS:,} keys to explain, found {len(queries):,} x top_b "
            f"{top_b:,}; ask for fewer",
        )

    def respond(answers: Answers) -> Response:
        content = compose([Result.of(answer) for answer in answers.answers]).model_dump_json(exclude_none=True)
        headers = _headers(predictor, answers.milliseconds)
        return Response(content, media_type="application/json", headers=headers)

    batcher: Batcher = request.app.state.batcher
    answer = batcher.submit(predictor, queries, _options(predictor, body), respond)
    try:
        async with asyncio.timeout(None if body.timeout_ms is None else body.timeout_ms / 1000):
            return await _while_wanted(answer, request)
    except TimeoutError:
        raise ProblemError(504, f"no answer within timeout_ms {body.timeout_ms}; allow more, or ask less") from None
    finally:
        answer.cancel()


async def _while_wanted(answer: asyncio.Future[Response], request: Request) -> Response:
    """The answer; or, to a client that has gone, which is looked after once it has waited for a while, nothing."""
    await asyncio.wait([answer], timeout=_PATIENCE_SECONDS)
    if not answer.done():
        gone: asyncio.Future[Any] = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not answer.done():
            return Response(status_code=_CLIENT_GONE)
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


def _headers(predictor: Predictor, milliseconds: dict[str, float]) -> dict[str, str]:
    """Name the version that answered, and where the time went."""
    stages = (f"{stage};dur={spent:.3f}" for stage, spent in milliseconds.items())
    return {"X-Index-Version": predictor.version, "Server-Timing": ", ".join(stages)}
