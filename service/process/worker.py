"""A serving process: opens the current version, runs the HTTP servers on one event loop, and drains at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import structlog

from service.http.admin import create_admin
from service.http.admin_guard import read_admin_token
from service.http.api_keys import read_api_keys
from service.http.app import create_app
from service.process.signals import ignore_loop_stop_signals, stop_event
from service.process.supervisor import HEARTBEAT_SECONDS
from service.process.uvicorn_server import UvicornServer
from service.redis_client import RedisClient
from service.reloaded_file import ReloadedFile, reloading
from service.settings import ServeSettings
from service.store.locations import open_store
from service.telemetry.metrics import Metrics
from service.versions.activation import Activation
from service.versions.announcements import Announcements
from service.versions.model_manager import ModelManager
from service.versions.opening import Opener
from service.versions.replicas import replicas_of

log = structlog.get_logger(__name__)

# Several batches run at the same time, so each batch uses only one thread in the encoder and one in faiss.
_THREADS_PER_BATCH = 1
# If no request arrives for this time, all load balancers have seen that this process is not ready.
_QUIET_SECONDS = 0.5


class Sockets(NamedTuple):
    """The listening sockets of a process; `admin` is None if the process has no admin interface."""

    public: socket.socket
    admin: socket.socket | None


def serve_sockets(
    settings: ServeSettings,
    sockets: Sockets,
    on_ready: Callable[[], None],
    heartbeat: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    A second signal ends the process at once with status 0, unless the process has a supervisor.

    Args:
        settings: All settings of the service.
        sockets: The listening sockets.
        on_ready: Called on the event loop when the current version is open.
        heartbeat: Called on the event loop every HEARTBEAT_SECONDS after `on_ready`; None if there is no supervisor.

    Raises:
        ServiceError: If the current version cannot be served, or a setting cannot be used.
    """
    metrics = Metrics(with_redis=settings.redis_url is not None)
    api_keys = admin_token = None
    if settings.api_keys is not None:
        api_keys = ReloadedFile(settings.api_keys, lambda path: read_api_keys(path, settings.rate_limit))
    if settings.admin_token_file is not None:
        admin_token = ReloadedFile(settings.admin_token_file, read_admin_token)
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    if settings.verify_activations:
        store.require_signed_activations()
    redis = None
    if settings.redis_url is not None:
        redis = RedisClient(settings.redis_url.get_secret_value(), settings.redis_prefix, metrics)
        redis.require_access()
    model_manager = ModelManager(
        Opener(store, _THREADS_PER_BATCH, settings.device, settings.workers),
        replicas_of(store, redis),
        metrics,
        settings.poll_seconds,
        Announcements(redis) if redis else None,
    )
    model_manager.open_current()
    _exempt_from_garbage_collection()
    served = [(UvicornServer(create_app(model_manager, settings, metrics, redis, api_keys)), sockets.public)]
    if sockets.admin is not None:
        activation = Activation(store, redis, lambda: model_manager.draining)
        admin = create_admin(store, activation, settings, model_manager, admin_token)
        served.append((UvicornServer(admin), sockets.admin))
    key_files = [file for file in (api_keys, admin_token, store.verify_keys) if file is not None]

    async def run() -> None:
        stop = stop_event(exit_on_second=heartbeat is None)
        on_ready()
        async with _heartbeats(heartbeat):
            with reloading(key_files), _redis_announcements(redis, model_manager):
                await _serve_until(stop, served, model_manager, settings.drain_seconds)
            if redis:
                await redis.close()
        log.info("stopped")
        ignore_loop_stop_signals()

    with asyncio.Runner(loop_factory=served[0][0].config.get_loop_factory()) as runner:
        runner.run(run())


def _exempt_from_garbage_collection() -> None:
    """Exempt all objects that exist now from Python's garbage collection.

    The modules of the libraries are hundreds of thousands of objects, which stay until the end of the process. Without
    the exemption, a full collection holds Python's global lock for 30 ms or more, and all answers wait.
    """
    gc.collect()
    gc.freeze()


async def _serve_until(
    stop: asyncio.Event,
    served: list[tuple[UvicornServer, socket.socket]],
    model_manager: ModelManager,
    drain_seconds: float,
) -> None:
    """Serve until `stop` is set and all servers have drained, or until a server ends by itself."""
    serving = [asyncio.create_task(server.serve([at])) for server, at in served]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        await _drain([server for server, _ in served], model_manager, drain_seconds)
    await asyncio.gather(*serving)


async def _drain(servers: list[UvicornServer], model_manager: ModelManager, seconds: float) -> None:
    """Report "not ready", and answer requests until no more arrive or half of the time has passed.

    Then close the sockets.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    log.info("draining", seconds=seconds)
    model_manager.drain()
    public = servers[0]
    # A client with an open connection may send a request at any time. Without open connections, only recent requests
    # matter.
    quiet_since = loop.time() if public.has_connections() else -math.inf
    while loop.time() - max(quiet_since, public.last_request_time()) < _QUIET_SECONDS:
        if loop.time() >= deadline - seconds / 2:
            break
        await asyncio.sleep(0.02)
    for server in servers:
        server.close_within(deadline - loop.time())


@contextlib.asynccontextmanager
async def _heartbeats(heartbeat: Callable[[], None] | None) -> AsyncIterator[None]:
    """Call `heartbeat` regularly on the event loop, so that the calls stop when the event loop is blocked."""
    if heartbeat is None:
        yield
        return

    async def beat() -> None:
        while True:
            heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()


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
