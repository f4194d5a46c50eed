"""The endpoints. Each takes the current predictor once, so that one version gives the whole answer."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.live import Live
from service.predictor import Answer, Answers, Options, Predictor
from service.problems import ProblemError, documented
from service.schemas import (
    Health,
    LabelResponse,
    PredictBatchRequest,
    PredictBatchResponse,
    PredictRequest,
    PredictResponse,
    Result,
    ScoredLabel,
    VersionResponse,
)

router = APIRouter()


def _live(request: Request) -> Live:
    live: Live = request.app.state.live
    return live


LiveDependency = Annotated[Live, Depends(_live)]


@router.post(
    "/predict",
    response_model=PredictResponse,
    response_model_exclude_none=True,
    responses=documented(413, 422, 503, 504),
)
async def predict(body: PredictRequest, live: LiveDependency, request: Request, response: Response) -> PredictResponse:
    """The labels that fit a query best."""
    predictor = live.predictor()
    answers = await _answer(predictor, [body.query], body, request)
    _tell(response, predictor, answers)
    return PredictResponse(version=predictor.version, **dict(_result(answers.answers[0])))


@router.post(
    "/predict/batch",
    response_model=PredictBatchResponse,
    response_model_exclude_none=True,
    responses=documented(413, 422, 503, 504),
)
async def predict_batch(
    body: PredictBatchRequest, live: LiveDependency, request: Request, response: Response
) -> PredictBatchResponse:
    """The labels that fit each of several queries best."""
    limit: int = request.app.state.max_batch
    if len(body.queries) > limit:
        raise ProblemError(413, f"queries: expected at most {limit}, found {len(body.queries):,}", "batch_too_large")
    predictor = live.predictor()
    answers = await _answer(predictor, body.queries, body, request)
    _tell(response, predictor, answers)
    return PredictBatchResponse(version=predictor.version, results=[_result(each) for each in answers.answers])


@router.get("/labels/{uid:path}", response_model=LabelResponse, responses=documented(404, 503))
async def label(uid: str, live: LiveDependency, response: Response) -> LabelResponse:
    """A label's text, and how many training instances have it."""
    predictor = live.predictor()
    labels = predictor.bundle.labels
    position = labels.position(uid)
    if position is None:
        raise ProblemError(404, f"label {uid[:80]!r} is unknown to version {predictor.version}", "unknown_label")
    _tell(response, predictor)
    count = int(labels.counts[position])
    return LabelResponse(version=predictor.version, uid=uid, text=labels.texts[position], training_count=count)


@router.get("/version", response_model=VersionResponse, responses=documented(503))
async def version(live: LiveDependency, response: Response) -> VersionResponse:
    """What is served, and since when."""
    predictor, since = live.serving()
    _tell(response, predictor)
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
    predictor: Predictor, queries: list[str], body: PredictRequest | PredictBatchRequest, request: Request
) -> Answers:
    """Run the predictor off the event loop; a request that waits past its deadline is never started."""
    submitted = time.perf_counter()

    def work() -> Answers:
        queued = (time.perf_counter() - submitted) * 1e3
        answers = predictor.predict(queries, _options(predictor, body))
        return Answers(answers.answers, {"queue": queued, **answers.milliseconds})

    workers: Executor = request.app.state.workers
    seconds = None if body.timeout_ms is None else body.timeout_ms / 1000
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(workers, work), seconds)
    except TimeoutError:
        raise ProblemError(504, f"no answer within timeout_ms {body.timeout_ms}; allow more, or ask less") from None


def _options(predictor: Predictor, body: PredictRequest | PredictBatchRequest) -> Options:
    """The request's options; the bundle's own where it says nothing.

    A uid that this version lacks admits and denies nothing: lists outlive versions.
    """
    return predictor.options(
        lambda_=body.lambda_,
        temperature=body.temperature,
        top_b=body.top_b,
        top_k=body.top_k,
        threshold=body.threshold,
        explain=body.explain,
        allow=None if body.allow is None else _positions(predictor, body.allow),
        deny=_positions(predictor, body.deny or []),
    )


def _positions(predictor: Predictor, uids: list[str]) -> frozenset[int]:
    found = (predictor.bundle.labels.position(uid) for uid in uids)
    return frozenset(position for position in found if position is not None)


def _result(answer: Answer) -> Result:
    labels = [ScoredLabel.model_validate(each) for each in answer.labels]
    return Result(labels=labels, truncated=answer.truncated or None, exhausted=answer.exhausted or None)


def _tell(response: Response, predictor: Predictor, answers: Answers | None = None) -> None:
    """Name the version that answered, and where the time went."""
    response.headers["X-Index-Version"] = predictor.version
    if answers:
        stages = (f"{stage};dur={spent:.3f}" for stage, spent in answers.milliseconds.items())
        response.headers["Server-Timing"] = ", ".join(stages)
