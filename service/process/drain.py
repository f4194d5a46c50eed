"""The stop signals of a serving process: an exit at once before it serves, and a drain when it serves.

The steps of a drain: report "not ready" until load balancers send no more requests, close the socket, answer the
requests in progress. At the deadline, the remaining requests get status 503. One second later the process exits, even
if a thread still computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog
import uvicorn

from recollect.service.telemetry.logs import flush_logs

if TYPE_CHECKING:  # the parent of several workers imports this module without numerical libraries
    from recollect.service.versions.model_manager import ModelManager

log = structlog.get_logger(__name__)

# A closed terminal sends SIGHUP. `nohup` makes a program ignore it.
_HANGUP = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, *_HANGUP)
# Signals that programs such as logrotate send, and whose default action ends a process.
_IGNORED_SIGNALS = {signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}.difference(_STOP_SIGNALS)
# If no request arrives for this time, all load balancers have seen that this process is not ready.
_QUIET_SECONDS = 0.5
# Time after the deadline until the process exits.
_EXIT_SECONDS = 1.0


@contextlib.contextmanager
def exiting_on_stop_signals(importing: bool = False) -> Iterator[None]:
    """End this process with status 0 on a stop signal, which process 1 of a container ignores without a handler.

    While the process only imports modules, it ends without an exception, because an import of a C library can turn the
    exception into another one.
    """
    handler = (lambda *_: os._exit(0)) if importing else _exit
    before = [signal.signal(number, handler) for number in _STOP_SIGNALS]
    yield
    for number, previous in zip(_STOP_SIGNALS, before, strict=True):  # not after an error, with which the process ends
        signal.signal(number, previous)


def ignore_other_signals() -> None:
    """Ignore signals that neither stop the service nor may end it, also in the processes that this one starts."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def exit_at_once() -> None:
    """End this process with status 0, without the end of its tasks and threads."""
    if multiprocessing.parent_process() is None:  # the supervisor of a worker says why it stops
        log.info("stopped_at_once")
    flush_logs()
    os._exit(0)  # a normal exit cancels the tasks of the loop, which logs tracebacks, and unloads libraries in use


def _exit(*_: object) -> None:
    _ignore_stop_signals()  # a second signal must not change the exit status
    sys.exit(0)


def _ignore_stop_signals() -> None:
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Drain:
    """Drains this process on a stop signal, before uvicorn stops.

    A second signal ends the process at once with status 0, unless the process is a worker: a worker may receive the
    first signal twice, from a terminal and from its supervisor.
    """

    def __init__(self, model_manager: ModelManager, seconds: float) -> None:
        self._model_manager, self._seconds = model_manager, seconds
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def on_stop_signals(self) -> Iterator[None]:
        """Handle the stop signals on the running event loop, in place of the handlers of uvicorn's server."""
        loop, server = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, server)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
            _ignore_stop_signals()

    def _on_signal(self, server: uvicorn.Server) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(server))
        elif multiprocessing.parent_process() is None:
            exit_at_once()

    async def _drain(self, server: uvicorn.Server) -> None:
        """Answer requests until no more arrive or half of the time has passed; then let uvicorn close the socket."""
        loop, requests = asyncio.get_running_loop(), -1
        start = loop.time()
        log.info("draining", seconds=self._seconds)
        self._model_manager.drain()
        self._exit_after(self._seconds + _EXIT_SECONDS)
        loop.call_at(start + self._seconds, self._abort, server)
        while requests < server.server_state.total_requests and loop.time() < start + self._seconds / 2:
            requests = server.server_state.total_requests
            await asyncio.sleep(min(_QUIET_SECONDS, self._seconds / 2))
        server.should_exit = True

    def _abort(self, server: uvicorn.Server) -> None:
        """Cancel the requests in progress, which the application answers with 503, and so their computations."""
        if requests := server.server_state.tasks:
            log.warning("requests_aborted", requests=len(requests), drain_seconds=self._seconds)
        for request in requests:
            request.cancel()  # also a request whose body has not arrived

    def _exit_after(self, seconds: float) -> None:
        """End this process with status 0 at a later time: nothing can end a thread that computes."""

        def exit_now() -> None:
            log.warning("stopped_during_work", seconds=seconds)
            flush_logs()
            os._exit(0)  # a normal exit would unload libraries that the threads still use

        timer = threading.Timer(seconds, exit_now)
        timer.daemon = True
        timer.start()
