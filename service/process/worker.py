"""A serving process: opens the current version, runs the HTTP servers on one event loop, and drains at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog

from service.http.admin import create_admin
from service.http.api_keys import read_api_keys
from service.http.app import create_app
from service.process.drain import serve_until
from service.process.liveness import Watchdog, heartbeats
from service.process.signals import ignore_loop_stop_signals, stop_event
from service.process.uvicorn_server import UvicornServer
from service.redis_client import RedisClient
from service.serving.batcher import Batcher
from service.settings import ServeSettings
from service.store.locations import open_store
from service.telemetry.metrics import Metrics
from service.threads import ThreadBudget
from service.versions.activation import Activation
from service.versions.current import SharedCurrent, StoreCurrent
from service.versions.model_manager import ModelManager
from service.versions.opening import Opener
from service.versions.replicas import replicas_of

log = structlog.get_logger(__name__)

# Several batches run at the same time, so each batch uses only one thread in the encoder and one in faiss.
_THREADS_PER_BATCH = 1


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
        heartbeat: Called on the event loop every second after `on_ready`, while no batch hangs; None if there is no
            supervisor.

    Raises:
        ServiceError: If the current version cannot be served, or a setting cannot be used.
    """
    metrics = Metrics(with_redis=settings.redis_url is not None)
    api_keys = read_api_keys(settings.api_keys, settings.rate_limit) if settings.api_keys else []
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    redis = None
    if settings.redis_url is not None:
        redis = RedisClient(settings.redis_url.get_secret_value(), settings.redis_prefix, metrics)
        redis.require_access()
    batcher = Batcher(
        ThreadBudget.of(settings.workers, settings.threads).threads,
        settings.max_queue,
        settings.encode_together,
        metrics,
        settings.hang_seconds,
    )
    model_manager = ModelManager(
        Opener(store, _THREADS_PER_BATCH, settings.device, settings.workers),
        SharedCurrent(store, redis) if redis else StoreCurrent(store),
        replicas_of(store, redis),
        metrics,
        settings.poll_seconds,
    )
    model_manager.open_current()
    served = [(UvicornServer(create_app(model_manager, batcher, settings, metrics, redis, api_keys)), sockets.public)]
    if sockets.admin is not None:
        activation = Activation(store, redis, lambda: model_manager.draining)
        served.append((UvicornServer(create_admin(store, activation, settings, model_manager)), sockets.admin))

    async def run() -> None:
        stop = stop_event(exit_on_second=heartbeat is None)
        on_ready()
        with contextlib.ExitStack() as stack:
            beat = heartbeat or stack.enter_context(Watchdog()).beat
            stack.enter_context(heartbeats(beat, batcher, model_manager, metrics))
            stack.enter_context(_redis_announcements(redis, model_manager))
            await serve_until(stop, served, model_manager, batcher, settings.drain_seconds)
            if redis:
                await redis.close()
        log.info("stopped")
        ignore_loop_stop_signals()

    with asyncio.Runner(loop_factory=served[0][0].config.get_loop_factory()) as runner:
        runner.run(run())


@contextlib.contextmanager
def _redis_announcements(redis: RedisClient | None, model_manager: ModelManager) -> Iterator[None]:
    """Check for a new version when Redis announces one."""
    if redis is None:
        yield
        return
    stopped = threading.Event()
    arguments = (redis.key("current"), model_manager.wake, stopped.is_set)
    thread = threading.Thread(target=redis.listen, args=arguments, name="redis-listener", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
