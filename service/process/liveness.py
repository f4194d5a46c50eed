"""Liveness: a process whose event loop or batcher hangs ends itself, and its supervisor or platform starts a new one.

The event loop beats every second. It stops beating while it is blocked, and while a block of a batch takes longer than
--hang-seconds: a thread cannot be ended, so only a new process computes with all threads again. After 30 seconds
without a beat, a thread ends the process with status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

import structlog

from recollect.service.serving.batcher import Batcher
from recollect.service.telemetry.logs import flush_logs
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import OpenVersions

log = structlog.get_logger(__name__)

# Time between two beats of the event loop, and the time without a beat after which the process ends.
_BEAT_SECONDS, HANG_SECONDS = 1.0, 30.0


@contextlib.contextmanager
def watching(batcher: Batcher, versions: OpenVersions, metrics: Metrics) -> Iterator[None]:
    """End this process if the running event loop or a batch hangs, and drain it if its supervisor has been killed.

    During a drain, the beats continue in any case, because the drain has a deadline of its own.
    """

    async def run() -> None:
        logged = False
        supervisor = multiprocessing.parent_process()
        while True:
            hung = batcher.hung
            metrics.batcher_hung.set(hung)
            if metrics.engine_up is not None:
                metrics.engine_up.set(versions.engine_problem() is None)
            if metrics.encoder_up is not None:
                metrics.encoder_up.set(versions.encoder_problem() is None)
            if not hung or versions.draining:
                watchdog.beat()
            if hung and not logged:
                log.error("batcher_hung", threads=batcher.threads, busy_threads=batcher.busy_threads)
            logged = hung
            if supervisor is not None and not supervisor.is_alive() and not versions.draining:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(_BEAT_SECONDS)

    with Watchdog() as watchdog:
        beating = asyncio.ensure_future(run())
        try:
            yield
        finally:
            beating.cancel()


class Watchdog:
    """Ends this process with status 1 if `beat` is not called for 30 seconds; usable as a context manager."""

    def __init__(self) -> None:
        self._beat, self._stopped = threading.Event(), False

    def beat(self) -> None:
        self._beat.set()

    def __enter__(self) -> Watchdog:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._beat.set()

    def _watch(self) -> None:
        silent_seconds = 0.0
        while silent_seconds <= HANG_SECONDS:
            # A wait counts as one second even if it took longer: then the whole process was suspended.
            silent_seconds = 0.0 if self._beat.wait(1.0) else silent_seconds + 1.0
            self._beat.clear()
            if self._stopped:
                return
        log.error("process_hung", seconds=HANG_SECONDS)
        flush_logs()
        os._exit(1)
