"""The endpoints. Each takes the current predictor once, so that one version gives the whole answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.http.problems import ProblemError, documented
from service.http.schemas import (
    Health,
    LabelResponse,
    PredictBatchRequest,
    PredictBatchResponse,
    PredictRequest,
    PredictResponse,
    VersionResponse,
)
from service.redis_client import RedisClient
from service.serving.pipeline import answer_queries
from service.telemetry.metrics import CONTENT_TYPE, Telemetry
from service.versions.model_manager import ModelManager

router = APIRouter()


async def _live(request: Request) -> ModelManager:  # FastAPI would run a plain function on a thread, which costs more
    live: ModelManager = request.app.state.live
    return live


LiveDependency = Annotated[ModelManager, Depends(_live)]


@router.post("/predict", response_model=PredictResponse, responses=documented(401, 413, 422, 429, 503, 504))
async def predict(body: PredictRequest, live: LiveDependency, request: Request) -> Response:
    """The labels that fit a query best."""
    lease = live.lease()
    with lease as predictor:
        answers, headers = await answer_queries(lease, [body.query], body, request)
        return _json(b'{"version":"%b",%b' % (predictor.version.encode(), answers[0][1:]), headers)


@router.post("/predict/batch", response_model=PredictBatchResponse, responses=documented(401, 413, 422, 429, 503, 504))
async def predict_batch(body: PredictBatchRequest, live: LiveDependency, request: Request) -> Response:
    """The labels that fit each of several queries best."""
    limit: int = request.app.state.settings.max_batch
    if len(body.queries) > limit:
        raise ProblemError(413, f"queries: expected at most {limit}, found {len(body.queries):,}", "batch_too_large")
    lease = live.lease()
    with lease as predictor:
        answers, headers = await answer_queries(lease, body.queries, body, request)
        return _json(b'{"version":"%b","results":[%b]}' % (predictor.version.encode(), b",".join(answers)), headers)


@router.get("/labels/{uid:path}", response_model=LabelResponse, responses=documented(401, 404, 503))
async def label(uid: str, live: LiveDependency, response: Response) -> LabelResponse:
    """A label's text, and how many training instances have it."""
    with live.lease() as predictor:
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
    manifest, since = live.serving()
    response.headers["X-Index-Version"] = manifest.version
    facts = {name: getattr(manifest, name) for name in VersionResponse.model_fields if name != "since"}
    return VersionResponse(since=since, **facts)


@router.get("/health/live", response_model=Health, response_model_exclude_none=True)
async def health_live() -> Health:
    """The process answers."""
    return Health(status="live")


@router.get("/health/ready", response_model=Health, response_model_exclude_none=True, responses=documented(503))
async def health_ready(live: LiveDependency, request: Request) -> Health:
    """A bundle is loaded and has answered; `degraded` names what the service does without."""
    if live.draining:
        raise ProblemError(503, "the service is stopping; ask another replica", "draining")
    live.serving()
    link: RedisClient | None = request.app.state.link
    return Health(status="ready", degraded=[link.problem] if link and link.problem else None)


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text format."}})
def metrics(request: Request) -> Response:  # in a thread: the numbers of many workers take a while to add up
    """Requests, latencies, queue, batches, kept answers, swaps and the version, over all workers."""
    telemetry: Telemetry = request.app.state.telemetry
    return Response(telemetry.exposition(), media_type=CONTENT_TYPE)


def _json(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, media_type="application/json", headers=headers)
