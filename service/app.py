"""The application, composed in one place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from service import problems
from service.batcher import Batcher
from service.live import Live
from service.middleware import BodyLimit, RequestContext
from service.routes import router
from service.schemas import Problem
from service.settings import ServeSettings, threads_or_cores

_DESCRIPTION = "The few right labels out of millions, from a memory that needs no retraining."


def create_app(live: Live, settings: ServeSettings) -> FastAPI:
    """The service around a live predictor, which it follows while it runs and closes when it stops."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        window_seconds = settings.batch_window_ms / 1000
        app.state.batcher = Batcher(threads_or_cores(settings.threads), settings.max_queue, window_seconds)
        live.follow()
        yield
        await asyncio.to_thread(live.close)
        await asyncio.to_thread(app.state.batcher.close)

    app = FastAPI(title="Recollect", description=_DESCRIPTION, lifespan=lifespan)
    app.state.live = live
    app.state.max_batch = settings.max_batch
    app.include_router(router)
    problems.install(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(RequestContext, live=live)
    _document_problems(app)
    return app


def _document_problems(app: FastAPI) -> None:
    """Put the error's schema where `problems.documented` points, and take FastAPI's own away."""
    schema = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            answers = operation["responses"].items()
            operation["responses"] = {code: each for code, each in answers if "HTTPValidationError" not in str(each)}
    schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(unused, None)
    app.openapi_schema = schema
