"""The application, composed in one place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from service.http import problems
from service.http.auth import Access, ApiKey, RateLimits
from service.http.middleware import BodyLimit, RequestContext
from service.http.routes import predict, predict_batch, router
from service.http.schemas import PredictBatchRequest, PredictRequest, Problem
from service.http.shortcut import Endpoints, Shortcut
from service.redis_client import RedisClient
from service.serving.answer_cache import KeptAnswers, LocalAnswers, RedisAnswers
from service.serving.batcher import Batcher
from service.settings import ServeSettings
from service.telemetry.metrics import Telemetry
from service.telemetry.tracing import Tracer
from service.threads import ThreadBudget
from service.versions.model_manager import ModelManager

_DESCRIPTION = "The few right labels out of millions, from a memory that needs no retraining."
# What a page of another origin may read.
_EXPOSED_HEADERS = ["X-Request-Id", "X-Index-Version", "Server-Timing", "Retry-After"]


def create_app(
    live: ModelManager,
    settings: ServeSettings,
    telemetry: Telemetry,
    link: RedisClient | None = None,
    api_keys: list[ApiKey] | None = None,
) -> ASGIApp:
    """The service around a live predictor, which it follows while it runs and closes when it stops."""
    tracer = Tracer()
    budget = ThreadBudget.of(settings.workers, settings.threads)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        window_seconds = settings.batch_window_ms / 1e3
        app.state.batcher = Batcher(
            budget.threads, settings.max_queue, settings.encode_together, window_seconds, telemetry
        )
        live.follow()
        yield
        await asyncio.to_thread(live.close)
        await asyncio.to_thread(app.state.batcher.close)
        await asyncio.to_thread(tracer.close)

    framework = FastAPI(title="Recollect", description=_DESCRIPTION, lifespan=lifespan)
    state = framework.state
    state.live, state.settings, state.telemetry, state.tracer, state.link = live, settings, telemetry, tracer, link
    state.kept, state.limits = _kept(settings, telemetry, link), RateLimits(settings.max_batch, settings.workers, link)
    framework.include_router(router)
    problems.install(framework)
    _document(framework, guarded=bool(api_keys))

    asked_most: Endpoints = {
        "/predict": (PredictRequest, predict),
        "/predict/batch": (PredictBatchRequest, predict_batch),
    }
    app: ASGIApp = Shortcut(framework, live, asked_most)
    app = BodyLimit(app, settings.max_body_bytes)
    if api_keys:
        app = Access(app, api_keys)
    if origins := settings.origins:
        app = CORSMiddleware(
            app, origins, allow_methods=["GET", "POST"], allow_headers=["*"], expose_headers=_EXPOSED_HEADERS
        )
    app = RequestContext(app, live, telemetry, settings.access_log)
    return tracer.around(app)


def _kept(settings: ServeSettings, telemetry: Telemetry, link: RedisClient | None) -> KeptAnswers | None:
    """Where answers are kept; None where none are to be."""
    if not settings.cache_mb:
        return None
    local = LocalAnswers(settings.cache_mb << 20, settings.cache_seconds, telemetry)
    return KeptAnswers(local, RedisAnswers(link, settings.cache_seconds, telemetry) if link else None)


def _document(app: FastAPI, guarded: bool) -> None:
    """Put the error's schema where `problems.documented` points, take FastAPI's own away, and tell of keys."""
    schema = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            answers = operation["responses"].items()
            operation["responses"] = {code: each for code, each in answers if "HTTPValidationError" not in str(each)}
            if guarded and "401" in operation["responses"]:
                operation["security"] = [{"bearer": []}, {"header": []}]
            for code in () if guarded else ("401", "429"):
                operation["responses"].pop(code, None)
    schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(unused, None)
    if guarded:
        schema["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    app.openapi_schema = schema
