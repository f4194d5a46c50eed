"""One process that serves: a bundle, an event loop, the HTTP interfaces, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog
import uvicorn
from starlette.types import ASGIApp

from service.http.admin import create_admin
from service.http.api_keys import read_api_keys
from service.http.app import create_app
from service.process.protocol import BoundedProtocol
from service.process.signals import STOPPING
from service.redis_client import RedisClient
from service.settings import ServeSettings
from service.store.locations import open_store
from service.telemetry.metrics import Telemetry
from service.versions.activation import Activation
from service.versions.current import SharedCurrent, StoreCurrent
from service.versions.model_manager import ModelManager
from service.versions.opening import Opener
from service.versions.replicas import replicas_of

log = structlog.get_logger(__name__)

# Batches are at work side by side, so that each gets one thread of the encoder's and one of faiss's.
_THREADS_A_BATCH = 1
# How long an idle connection is kept: longer than proxies keep theirs, so that it is they who hang up.
_KEEP_ALIVE_SECONDS = 75
# Without a request for so long, whoever routes them has seen that this process is not ready.
_QUIET_SECONDS = 0.5


class Sockets(NamedTuple):
    """Where requests come in; `admin` is None where there is no admin interface."""

    public: socket.socket
    admin: socket.socket | None


def serve_sockets(settings: ServeSettings, sockets: Sockets, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT says stop.

    Args:
        settings: All of the service's.
        sockets: To listen on.
        ready: Called once the current version has answered.

    Raises:
        ServiceError: If the current version cannot be served, or a setting names what cannot be used.
    """
    telemetry = Telemetry(with_redis=settings.redis_url is not None)
    api_keys = read_api_keys(settings.api_keys, settings.rate_limit) if settings.api_keys else []
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    link = None
    if settings.redis_url is not None:
        link = RedisClient(settings.redis_url.get_secret_value(), settings.redis_prefix, telemetry)
        link.require_access()
    live = ModelManager(
        Opener(store, _THREADS_A_BATCH, settings.device, settings.workers),
        SharedCurrent(store, link) if link else StoreCurrent(store),
        replicas_of(store, link),
        telemetry,
        settings.poll_seconds,
    )
    live.open_current()
    apps = [(create_app(live, settings, telemetry, link, api_keys), sockets.public)]
    if sockets.admin is not None:
        apps.append(
            (create_admin(store, Activation(store, link, lambda: live.draining), settings, live), sockets.admin)
        )
    ready()
    with asyncio.Runner(loop_factory=_config(apps[0][0]).get_loop_factory()) as runner:
        runner.run(_run(apps, live, link, settings))


async def _run(
    apps: list[tuple[ASGIApp, socket.socket]], live: ModelManager, link: RedisClient | None, settings: ServeSettings
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    servers = [_Server(_config(app)) for app, _ in apps]

    def asked_to_stop() -> None:
        if stop.is_set() and settings.workers == 1:  # asked twice: at once, then; of several, the watcher sees to it
            for server in servers:
                server.force_exit = True
        stop.set()

    for number in STOPPING:
        loop.add_signal_handler(number, asked_to_stop)
    serving = [asyncio.create_task(server.serve([at])) for server, (_, at) in zip(servers, apps, strict=True)]
    with _listening(live, link):
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await _drain(servers, live, settings.drain_seconds)
        await asyncio.gather(*serving)
    if link:
        await link.close()
    log.info("stopped")


async def _drain(servers: list[_Server], live: ModelManager, seconds: float) -> None:
    """Be ready no more; go on answering until no more is asked, or half the time is up; then close the sockets."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    log.info("draining", seconds=seconds)
    live.drain()
    public = servers[0]
    # Who keeps a connection may be about to ask; where nobody does, and nobody has asked of late, nobody will.
    since = loop.time() if public.server_state.connections else -math.inf
    while loop.time() - max(since, public.asked_at()) < _QUIET_SECONDS:
        if loop.time() >= deadline - seconds / 2 or public.force_exit:
            break
        await asyncio.sleep(0.02)
    for server in servers:
        server.config.timeout_graceful_shutdown = max(1, round(deadline - loop.time()))
        server.should_exit = True


@contextlib.contextmanager
def _listening(live: ModelManager, link: RedisClient | None) -> Iterator[None]:
    """Look for another version as soon as Redis announces it."""
    if link is None:
        yield
        return
    over = threading.Event()
    arguments = (link.key("current"), live.wake, over.is_set)
    listener = threading.Thread(target=link.listen, args=arguments, name="hear-redis", daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()


class _Server(uvicorn.Server):
    """Uvicorn's, which knows when it was asked last."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._requests, self._asked_at = 0, -math.inf

    def asked_at(self) -> float:
        """When the last request came, or was still being answered, by the event loop's clock."""
        state = self.server_state
        if state.total_requests != self._requests or state.tasks:
            self._requests, self._asked_at = state.total_requests, asyncio.get_running_loop().time()
        return self._asked_at

    async def on_tick(self, counter: int) -> bool:
        self.asked_at()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are ours


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
