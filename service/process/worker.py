"""A serving process: opens the current version, creates the application, and runs its background threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from recollect.core import kernels
from recollect.core.system.reloaded_file import ReloadedFile, reloading
from recollect.core.system.threads import ThreadBudget
from recollect.service.addresses import start_listening, url
from recollect.service.http.api_keys import read_api_keys
from recollect.service.http.app import create_app
from recollect.service.http.version_routes import VersionRoutes
from recollect.service.process.certificate import watching_certificate
from recollect.service.process.drain import Drain, exit_at_once
from recollect.service.process.liveness import watching
from recollect.service.redis_client import RedisClient
from recollect.service.serving.batcher import Batcher
from recollect.service.settings import ServeSettings
from recollect.service.telemetry.logs import count_dropped_lines
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.model_manager import ModelManager
from recollect.service.versions.opening import Opener
from recollect.service.versions.reports import reports_of
from recollect.store.store import Store

log = structlog.get_logger(__name__)

# Maximum time to remove the report of a replica that stops before its first version is open.
_WITHDRAW_SECONDS = 1.0
# Several batches run at the same time, so each batch uses only one thread in the encoder and one in faiss.
_THREADS_PER_BATCH = 1


def open_application(settings: ServeSettings, public: socket.socket) -> ASGIApp:
    """Open the current version, let connections wait for the server, and return the application.

    No connection is accepted before the version is open. A stop signal ends the process at once until then.

    Raises:
        ServiceError: If the current version cannot be served, or a setting or an address cannot be used.
    """
    metrics = Metrics(
        with_redis=settings.redis_url is not None,
        with_engine=settings.engine_uri is not None,
        with_tls=settings.tls_cert is not None,
        with_encoder=settings.encoder_url is not None,
    )
    count_dropped_lines(metrics.log_lines_dropped.inc)
    api_keys = None
    if settings.api_keys is not None:
        api_keys = ReloadedFile(settings.api_keys, lambda path: read_api_keys(path, settings.rate_limit))
    store = Store(settings.store, settings.verify_key, settings.bundle_cache)
    redis = RedisClient.of(settings, metrics, settings.redis_ms / 1e3)
    if redis is not None:
        redis.require_access()
    threads = ThreadBudget.of(settings.workers, settings.threads).threads
    batcher = Batcher(threads, settings.max_queue, settings.encode_together, metrics, settings.hang_seconds)
    reports = reports_of(store, redis)
    device, workers, live = settings.device, settings.workers, settings.reads_live_entries
    opener = Opener(store, _THREADS_PER_BATCH, device, workers, settings, metrics.count_engine_call, live)
    model_manager = ModelManager(opener, reports, metrics, settings.poll_seconds)
    key_files = [file for file in (api_keys, store.verify_keys) if file is not None]

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        """Run the background threads of this process, and drain it on a stop signal."""
        await run_in_threadpool(lambda: None)  # its first use imports modules, which would stop all answers for 60 ms
        # The modules of the libraries are hundreds of thousands of objects, which stay until the end of the process. A
        # full collection of them would hold Python's global lock for 30 ms or more, and all answers would wait.
        gc.collect()
        gc.freeze()
        # The loops of a plain request are compiled already, because the first version has answered some queries.
        threading.Thread(target=kernels.compile_others, name="compile", daemon=True).start()
        model_manager.follow(lambda: batcher.load)
        with contextlib.ExitStack() as stack:
            stack.enter_context(watching(batcher, model_manager.versions, metrics))
            stack.enter_context(reloading(key_files))
            if settings.tls_cert is not None:
                stack.enter_context(watching_certificate(settings.tls_cert, metrics))
            stack.enter_context(Drain(model_manager, settings.drain_seconds).on_stop_signals())
            log.info("serving", url=url(public, settings.tls_cert is not None), workers=settings.workers)
            yield
            if redis:
                await redis.close()
        log.info("stopped")

    app = create_app(model_manager, batcher, settings, metrics, redis, api_keys, VersionRoutes(store, reports), serving)
    _open_current(model_manager)
    start_listening(public)
    return app


def _open_current(model_manager: ModelManager) -> None:
    """Open the current version in a thread, so that a stop signal ends this process at once."""
    opened: concurrent.futures.Future[None] = concurrent.futures.Future()

    def open_current() -> None:
        try:
            model_manager.open_current()
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            opened.set_exception(error)
        else:
            opened.set_result(None)

    threading.Thread(target=open_current, name="open-first", daemon=True).start()
    try:
        opened.result()
    except SystemExit:  # a stop signal
        model_manager.withdraw(_WITHDRAW_SECONDS)
        exit_at_once()
