"""The public application: creates its objects, starts and closes them, and puts the middleware around the routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from recollect.core import extras
from recollect.core.options import answer_cost, max_request_cost
from recollect.core.system.reloaded_file import ReloadedFile
from recollect.service.http import problems
from recollect.service.http.api_keys import ApiKeys
from recollect.service.http.label_routes import LabelRoutes
from recollect.service.http.memory_routes import MemoryRoutes
from recollect.service.http.middleware import Gateway, route_of
from recollect.service.http.predict_routes import PredictRoutes
from recollect.service.http.schemas import Problem
from recollect.service.http.status_routes import StatusRoutes
from recollect.service.http.version_routes import VersionRoutes
from recollect.service.playground.pages import FactsRoute, add_docs, add_playground
from recollect.service.redis_client import RedisClient
from recollect.service.serving.answer_cache import AnswerCache
from recollect.service.serving.answering import Answering
from recollect.service.serving.batcher import MAX_ANSWER_BYTES, Batcher
from recollect.service.serving.rate_limit import RateLimits
from recollect.service.settings import ServeSettings
from recollect.service.telemetry.metrics import Metrics
from recollect.service.telemetry.tracing import open_tracer
from recollect.service.versions.model_manager import ModelManager

_DESCRIPTION = "The few right labels out of millions, from a memory that needs no retraining."
# Response headers that a web page of another origin may read.
_EXPOSED_HEADERS = ["X-Request-Id", "X-Index-Version", "Server-Timing", "Retry-After"]


def create_app(
    model_manager: ModelManager,
    batcher: Batcher,
    settings: ServeSettings,
    metrics: Metrics,
    redis: RedisClient | None,
    api_keys: ReloadedFile[ApiKeys] | None,
    operations: VersionRoutes,
    serving: Callable[[], contextlib.AbstractAsyncContextManager[None]],
) -> ASGIApp:
    """Compose the application, which starts and closes the batcher, and closes the model manager when it ends.

    It answers in the context `serving`. Only API keys may use `operations`.
    """
    tracer = open_tracer()
    cache = AnswerCache(settings.cache_mb << 20, settings.cache_seconds, metrics, redis) if settings.cache_mb else None
    max_cost = max_request_cost(settings.max_batch, settings.max_query_bytes) + answer_cost(MAX_ANSWER_BYTES)
    rate_limits = RateLimits(settings.max_batch, max_cost, settings.workers, redis, metrics)
    versions = model_manager.versions

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        async with serving():
            yield
        await asyncio.to_thread(model_manager.close)
        await asyncio.to_thread(batcher.close)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = FastAPI(
        title="Recollect",
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None if settings.docs == "off" else "/openapi.json",
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
        servers=[{"url": "."}],  # relative to the document: a proxy can put a prefix before all paths
        redirect_slashes=False,  # behind a proxy that ends TLS, the redirect would lead to http
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `recollect.service.telemetry` has all of these
    )
    answering = Answering(versions, batcher, cache, rate_limits, metrics, tracer, settings, model_manager.follow_log)
    PredictRoutes(answering, settings.max_batch, settings.assign_threshold).register(app.router)
    StatusRoutes(versions, batcher, redis, metrics).register(app.router, with_metrics=settings.metrics != "off")
    LabelRoutes(versions, rate_limits, settings.max_seconds).register(app.router)
    memory_routes = MemoryRoutes(
        versions, rate_limits, settings.writable, settings.delta_keys, settings.delta_mb << 20, settings.max_seconds
    )
    memory_routes.register(app.router)
    if api_keys is not None:
        operations.register(app.router)
    if settings.docs != "off":
        add_docs(app.router)
    if settings.annif:
        annif = extras.load("routes", "annif")
        annif.AnnifRoutes(answering, versions, memory_routes, settings.max_query_bytes).register(app.router)
    if settings.playground:
        facts = FactsRoute(versions, docs=settings.docs == "public", writable=settings.writable)
        app.router.add_api_route("/playground/bundle", facts.bundle, include_in_schema=False)
        add_playground(app.router)
    problems.install(app)
    _document(app, guarded=api_keys is not None)

    # A request passes through these layers from the last one to the first one.
    layers: ASGIApp = Gateway(app, versions, rate_limits, metrics, settings, api_keys)
    if settings.origins:
        layers = CORSMiddleware(
            layers,
            settings.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
        )
    return tracer.around(layers, route_of) if tracer is not None else layers


def _document(app: FastAPI, guarded: bool) -> None:
    """Add the schema of problems to FastAPI's OpenAPI document, and describe API keys only if requests need one."""
    schema = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"] = {
                code: response
                for code, response in operation["responses"].items()
                if "HTTPValidationError" not in str(response)
            }
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
