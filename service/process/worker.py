"""A serving process: opens the current version, runs the HTTP servers on one event loop, and drains at shutdown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from starlette.concurrency import run_in_threadpool

from recollect.service.addresses import start_listening
from recollect.service.bundle.signing_key import read_signing_key
from recollect.service.canary.breaker import BreakerLimits
from recollect.service.connection.connections import Connections, usable_connections
from recollect.service.http.admin import create_admin
from recollect.service.http.admin_guard import read_admin_token
from recollect.service.http.api_keys import read_api_keys
from recollect.service.http.app import create_app
from recollect.service.process.compactions import compacting, require_builder
from recollect.service.process.drain import serve_until
from recollect.service.process.endpoints import Endpoints
from recollect.service.process.liveness import Watchdog, heartbeats
from recollect.service.process.signals import exit_at_once, ignore_loop_stop_signals, stop_event
from recollect.service.process.uvicorn_server import UvicornServer
from recollect.service.redis_client import RedisClient
from recollect.service.reloaded_file import ReloadedFile, reloading
from recollect.service.serve_settings import ServeSettings
from recollect.service.serving.batcher import Batcher
from recollect.service.store.locations import open_store
from recollect.service.telemetry.metrics import Metrics
from recollect.service.threads import ThreadBudget
from recollect.service.versions.activation import Activation
from recollect.service.versions.announcements import Announcements
from recollect.service.versions.model_manager import ModelManager
from recollect.service.versions.opening import Opener
from recollect.service.versions.replicas import replicas_of

log = structlog.get_logger(__name__)

# Maximum time to remove the report of a replica that stops before its first version is open.
_WITHDRAW_SECONDS = 1.0
# Several batches run at the same time, so each batch uses only one thread in the encoder and one in faiss.
_THREADS_PER_BATCH = 1


def serve_endpoints(
    settings: ServeSettings,
    endpoints: Endpoints,
    on_ready: Callable[[], None],
    heartbeat: Callable[[], None] | None = None,
    answer_while_opening: bool = True,
) -> None:
    """Serve until SIGTERM or SIGINT.

    A second signal ends the process at once with status 0, unless the process has a supervisor.

    Args:
        settings: All settings of the service.
        endpoints: The addresses to serve.
        on_ready: Called on the event loop when the current version is open.
        heartbeat: Called on the event loop every second after `on_ready`, while no batch hangs; None if there is no
            supervisor.
        answer_while_opening: Whether this process answers requests while the current version opens: metrics and states,
            and 503 to all others. False if another process can answer requests at the same address.

    Raises:
        ServiceError: If the current version cannot be served, or a setting or an address cannot be used.
    """
    if settings.compact_at is not None:
        require_builder()
    metrics = Metrics(with_redis=settings.redis_url is not None, with_engine=settings.engine_uri is not None)
    api_keys = admin_token = None
    if settings.api_keys is not None:
        api_keys = ReloadedFile(settings.api_keys, lambda path: read_api_keys(path, settings.rate_limit))
    if settings.admin_token_file is not None:
        admin_token = ReloadedFile(settings.admin_token_file, read_admin_token)
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    if settings.verify_activations:
        store.require_signed_activations()
    signing = None if settings.sign is None else read_signing_key(settings.sign)
    redis = RedisClient.of(settings, metrics)
    if redis is not None:
        redis.require_access()
    batcher = Batcher(
        ThreadBudget.of(settings.workers, settings.threads).threads,
        settings.max_queue,
        settings.encode_together,
        metrics,
        settings.hang_seconds,
    )
    model_manager = ModelManager(
        Opener(store, _THREADS_PER_BATCH, settings.device, settings.workers, signing, settings, metrics.engine),
        replicas_of(store, redis),
        metrics,
        settings.poll_seconds,
        Announcements(redis) if redis else None,
        BreakerLimits(settings.canary_window, settings.canary_max_errors, settings.canary_max_slowdown),
    )
    limit = usable_connections(settings.max_connections)
    app = create_app(model_manager, batcher, settings, metrics, redis, api_keys)
    served = [(UvicornServer(app, Connections(limit, metrics), endpoints.public.tls), endpoints.public.bound)]
    if endpoints.admin is not None:
        activation = Activation(store, redis, lambda: model_manager.versions.draining)
        admin = create_admin(store, activation, settings, model_manager.versions, admin_token)
        served.append((UvicornServer(admin, Connections(limit, None), endpoints.admin.tls), endpoints.admin.bound))
    key_files = [file for file in (api_keys, admin_token, store.verify_keys) if file is not None]
    servers = [server for server, _ in served]

    async def run() -> None:
        stop = stop_event(exit_on_second=heartbeat is None)
        serving = _start(served) if answer_while_opening else []
        try:
            await _open_current(model_manager, stop)
        except BaseException:
            for server in servers:
                server.close_within(0)
            await asyncio.gather(*serving)
            raise
        serving = serving or _start(served)
        await _load_thread_pool()
        _exempt_from_garbage_collection()
        model_manager.follow(lambda: batcher.load)
        on_ready()
        with contextlib.ExitStack() as stack:
            beat = heartbeat or stack.enter_context(Watchdog()).beat
            stack.enter_context(heartbeats(beat, batcher, model_manager.versions, metrics))
            stack.enter_context(reloading(key_files))
            stack.enter_context(_redis_announcements(redis, model_manager))
            stack.enter_context(compacting(settings, store, model_manager.versions, metrics))
            await serve_until(stop, servers, serving, model_manager, batcher, settings.drain_seconds)
            if redis:
                await redis.close()
        log.info("stopped")
        ignore_loop_stop_signals()

    with asyncio.Runner(loop_factory=servers[0].config.get_loop_factory()) as runner:
        runner.run(run())


def _start(served: list[tuple[UvicornServer, socket.socket]]) -> list[asyncio.Task[None]]:
    """Accept connections.

    Raises:
        AddressError: If another process listens on the same address.
    """
    for _, bound in served:
        start_listening(bound)
    return [asyncio.create_task(server.serve([bound])) for server, bound in served]


async def _open_current(model_manager: ModelManager, stop: asyncio.Event) -> None:
    """Open the current version in a thread, so that the event loop can answer requests at the same time.

    If `stop` is set before the version is open, this process ends at once.

    Raises:
        ServiceError: If the version cannot be served.
    """
    opened: concurrent.futures.Future[None] = concurrent.futures.Future()

    def open_current() -> None:
        try:
            model_manager.open_current()
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            opened.set_exception(error)
        else:
            opened.set_result(None)

    context = contextvars.copy_context()  # the log context with the worker's number
    # A daemon thread, because the process may end before the version is open.
    threading.Thread(target=context.run, args=(open_current,), name="open-first", daemon=True).start()
    opening, stopping = asyncio.wrap_future(opened), asyncio.create_task(stop.wait())
    either: list[asyncio.Future[Any]] = [opening, stopping]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not opening.done():
        model_manager.withdraw(_WITHDRAW_SECONDS)
        exit_at_once()
    await opening


async def _load_thread_pool() -> None:
    """Use the framework's thread pool once: its first use imports modules, which would stop all answers for 60 ms."""
    await run_in_threadpool(lambda: None)


def _exempt_from_garbage_collection() -> None:
    """Exempt all objects that exist now from Python's garbage collection.

    The modules of the libraries are hundreds of thousands of objects, which stay until the end of the process. Without
    the exemption, a full collection holds Python's global lock for 30 ms or more, and all answers wait.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _redis_announcements(redis: RedisClient | None, model_manager: ModelManager) -> Iterator[None]:
    """Check for a new version when Redis announces one."""
    if redis is None:
        yield
        return
    stopped = threading.Event()
    arguments = (Announcements(redis).channel, model_manager.wake, stopped.is_set)
    thread = threading.Thread(target=redis.listen, args=arguments, name="redis-listener", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
