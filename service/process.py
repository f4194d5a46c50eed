"""One process that serves: a bundle, an event loop, the HTTP interfaces, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog
import uvicorn
from starlette.types import ASGIApp

from service.access import read_api_keys
from service.activation import Activation
from service.admin import create_admin
from service.app import create_app
from service.current import SharedCurrent, StoreCurrent
from service.live import Live
from service.opening import Opener
from service.protocol import BoundedProtocol
from service.redis_link import RedisLink
from service.replicas import FolderReplicas, RedisReplicas
from service.settings import ServeSettings
from service.store import open_store
from service.telemetry import Telemetry

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
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))  # until there is a loop that can drain
    telemetry = Telemetry(with_redis=settings.redis_url is not None)
    api_keys = read_api_keys(settings.api_keys, settings.rate_limit) if settings.api_keys else []
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    link = None
    if settings.redis_url is not None:
        link = RedisLink(settings.redis_url.get_secret_value(), settings.redis_prefix, telemetry)
        link.require_access()
    live = Live(
        Opener(store, _THREADS_A_BATCH, settings.device, settings.workers),
        SharedCurrent(store, link) if link else StoreCurrent(store),
        RedisReplicas(link) if link else FolderReplicas(store.root / "replicas"),
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
        runner.run(_run(apps, live, link, settings.drain_seconds))


async def _run(
    apps: list[tuple[ASGIApp, socket.socket]], live: Live, link: RedisLink | None, drain_seconds: float
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    servers = [_Server(_config(app)) for app, _ in apps]

    def asked_to_stop() -> None:
        if stop.is_set():  # asked twice: at once, then
            for server in servers:
                server.force_exit = True
        stop.set()

    for signal_ in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_, asked_to_stop)
    serving = [asyncio.create_task(server.serve([at])) for server, (_, at) in zip(servers, apps, strict=True)]
    with _listening(live, link):
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await _drain(servers, live, drain_seconds)
        await asyncio.gather(*serving)
    if link:
        await link.close()
    log.info("stopped")


async def _drain(servers: list[_Server], live: Live, seconds: float) -> None:
    """Be ready no more; go on answering until no more is asked, or half the time is up; then close the sockets."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    log.info("draining", seconds=seconds)
    live.drain()
    public = servers[0]
    asked, since = public.server_state.total_requests, loop.time()
    while public.server_state.connections and loop.time() < deadline - seconds / 2 and not public.force_exit:
        if (now_asked := public.server_state.total_requests) != asked or public.server_state.tasks:
            asked, since = now_asked, loop.time()
        if loop.time() - since >= _QUIET_SECONDS:
            break
        await asyncio.sleep(0.02)
    for server in servers:
        server.config.timeout_graceful_shutdown = max(1, round(deadline - loop.time()))
        server.should_exit = True


@contextlib.contextmanager
def _listening(live: Live, link: RedisLink | None) -> Iterator[None]:
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
