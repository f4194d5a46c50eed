"""The drain: a process that stops answers the requests in progress first, within a limited time.

The steps: report "not ready" until load balancers send no more requests, close the sockets, answer the requests in
progress. At the deadline, the remaining requests get status 503. One second later the process exits, even if a thread
still computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator

import structlog

from recollect.service.process.uvicorn_server import UvicornServer
from recollect.service.serving.batcher import Batcher
from recollect.service.versions.model_manager import ModelManager

log = structlog.get_logger(__name__)

# If no request arrives for this time, all load balancers have seen that this process is not ready.
_QUIET_SECONDS = 0.5
# After the deadline: the time to send the last answers, and the time until the process exits.
_LAST_ANSWERS_SECONDS, _EXIT_SECONDS = 0.3, 0.7
# Maximum time to remove the report of this replica before the process exits.
_WITHDRAW_SECONDS = 0.3


async def serve_until(
    stop: asyncio.Event,
    servers: list[UvicornServer],
    serving: list[asyncio.Task[None]],
    model_manager: ModelManager,
    batcher: Batcher,
    drain_seconds: float,
) -> None:
    """Serve until `stop` is set and all servers have drained, or until a server ends by itself."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        for server in servers:  # the process ends with any of its servers
            server.close_within(0)
        await asyncio.gather(*serving)
        return
    with _exit_after(drain_seconds + _EXIT_SECONDS, model_manager):
        await _drain(servers, model_manager, batcher, drain_seconds)
        await asyncio.gather(*serving)


async def _drain(servers: list[UvicornServer], model_manager: ModelManager, batcher: Batcher, seconds: float) -> None:
    """Report "not ready", and answer requests until no more arrive or half of the time has passed.

    Then close the sockets. The requests in progress have the rest of the time.
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

    def abort() -> None:
        if requests := batcher.abort():
            log.warning("requests_aborted", requests=requests, drain_seconds=seconds)

    loop.call_at(deadline, abort)
    for server in servers:
        server.close_within(deadline + _LAST_ANSWERS_SECONDS - loop.time())


@contextlib.contextmanager
def _exit_after(seconds: float, model_manager: ModelManager) -> Iterator[None]:
    """End this process with status 0 if the block takes longer: nothing can end a thread that computes."""

    def exit_now() -> None:
        log.warning("stopped_during_work", seconds=seconds)
        sys.stdout.flush()
        model_manager.withdraw(_WITHDRAW_SECONDS)
        os._exit(0)  # a normal exit would unload libraries that the threads still use

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
