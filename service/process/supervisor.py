"""Runs several worker processes on the same sockets, and replaces a worker that dies or hangs.

The supervisor forks before heavy libraries are loaded, serves no requests and keeps the sockets open. If a worker dies,
only the requests of this worker fail.

Uvicorn's supervisor (`uvicorn.supervisors.Multiprocess`, 0.54) cannot replace this supervisor. Uvicorn's supervisor
restarts a worker that exited, but not a worker whose event loop is blocked, because a thread answers the health check
(measured: the worker still ran after 10 s). It also starts all workers at once, restarts them without a delay, waits
for their end without a limit, and gives them no numbers: each of its methods would have to be overridden.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from recollect.service.errors import ServiceError
from recollect.service.process.signals import (
    STOP_SIGNALS,
    block_stop_signals,
    exit_on_stop_signals,
    leave_signal_socket,
    signal_socket,
    unblock_stop_signals,
)

log = structlog.get_logger(__name__)

# The function that a worker process runs. It receives the worker's number and a function `heartbeat`, which it must
# call when it can answer requests, and every HEARTBEAT_SECONDS from then on.
Work = Callable[[int, Callable[[], None]], None]

HEARTBEAT_SECONDS = 1.0
# A worker that sends no heartbeat for this time is killed and restarted.
HANG_SECONDS = 30.0
# Delay before a worker is restarted. The delay doubles each time the worker dies soon after it became ready.
_MIN_RESTART_SECONDS, _MAX_RESTART_SECONDS = 0.1, 30.0
# After a worker was ready for this time, its restart delay is the shortest delay again.
_STABLE_SECONDS = 10.0
# Reserve that is added to the time that workers have to stop.
_STOP_GRACE_SECONDS = 5.0
# Maximum time of one wait for a signal or a heartbeat.
_POLL_SECONDS = 1.0
# Exit statuses of a worker: it stopped on request, or it has already printed its error.
_EXPLAINED_STATUSES = (0, 1, 2)
_PR_SET_PDEATHSIG = 1


@dataclass
class _Worker:
    number: int
    ready_since: float | None = None
    silent_seconds: float = 0.0


class Supervisor:
    """Runs workers until SIGTERM or SIGINT; a second signal kills all workers that still run.

    Args:
        count: Number of workers.
        work: Function that each worker process runs.
        stop_seconds: Maximum time in which the workers must stop.
        on_stop: Called at shutdown, before the workers receive SIGTERM.
        on_exit: Called with the process id of each worker that has exited.
    """

    def __init__(
        self,
        count: int,
        work: Work,
        stop_seconds: float,
        on_stop: Callable[[], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._count, self._work, self._stop_seconds = count, work, stop_seconds
        self._on_stop, self._on_exit = on_stop, on_exit
        self._running: dict[int, _Worker] = {}  # by the worker's process id
        self._were_ready: set[int] = set()  # numbers
        self._restart_times: dict[int, float] = {}  # by number
        self._restart_delays: dict[int, float] = {}  # by number
        self._failure: int | None = None
        self._stop_requests = 0

    def has_ready_worker(self) -> bool:
        return any(worker.ready_since is not None for worker in self._running.values())

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run the workers and return the exit status.

        The first worker starts alone. If the first worker fails, the other workers would fail too, so the service does
        not start and the worker's exit status is returned.

        Args:
            on_ready: Called when every worker has been ready.
        """
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK)  # a full pipe must not block a worker's event loop
        with signal_socket() as signals:
            self._start(0)
            while not (self._stop_requests or self._were_ready or self._failure is not None):
                self._step(signals)
            if self._failure is not None:
                return self._failure
            if not self._stop_requests:
                for number in range(1, self._count):
                    self._start(number)
            while not self._stop_requests and len(self._were_ready) < self._count:
                self._step(signals)
            if not self._stop_requests:
                on_ready()
            while not self._stop_requests:
                self._step(signals)
            return self._stop(signals)

    def _start(self, number: int) -> None:
        block_stop_signals()  # until the new process has its own signal handlers
        if process := os.fork():
            unblock_stop_signals()
            self._running[process] = _Worker(number)
            return
        status = 1
        try:
            status = self._run_worker(number)
        finally:
            os._exit(status)

    def _run_worker(self, number: int) -> int:
        """Run one worker in the forked process, report its error, and return its exit status."""
        try:
            leave_signal_socket()
            exit_on_stop_signals()
            unblock_stop_signals()
            _stop_with_parent()
            self._work(number, lambda: self._send_heartbeat(number))
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 1
        except ServiceError as error:
            print(f"recollect serve: {error}", file=sys.stderr, flush=True)  # noqa: T201
            return error.exit_status
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            log.error("worker_failed", worker=number, exc_info=error)
            return 1
        return 0

    def _send_heartbeat(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the supervisor reads nothing, or has exited
            os.write(self._writer, bytes([number]))

    def _step(self, signals: socket.socket) -> None:
        """Wait for a signal, a heartbeat or the time of a restart; then handle it."""
        before = time.monotonic()
        timeout = min([_POLL_SECONDS, *(due - before for due in self._restart_times.values())])
        readable, _, _ = select.select([signals.fileno(), self._reader], [], [], max(0.0, timeout))
        if signals.fileno() in readable:
            self._stop_requests += sum(number in STOP_SIGNALS for number in signals.recv(4096))
        heartbeats = os.read(self._reader, 4096) if self._reader in readable else b""
        self._record_heartbeats(heartbeats, time.monotonic() - before)
        self._reap()
        if not self._stop_requests:
            self._kill_hung()
            self._restart_due()

    def _record_heartbeats(self, numbers: bytes, waited_seconds: float) -> None:
        self._were_ready.update(numbers)
        for worker in self._running.values():
            if worker.number in numbers:
                worker.ready_since = worker.ready_since or time.monotonic()
                worker.silent_seconds = 0.0
            elif worker.ready_since is not None:
                # A longer wait means that the whole service was suspended, so the workers could not send heartbeats.
                worker.silent_seconds += min(waited_seconds, _POLL_SECONDS)

    def _kill_hung(self) -> None:
        for process, worker in self._running.items():
            if worker.silent_seconds > HANG_SECONDS:
                log.error("worker_hung", worker=worker.number, process=process, seconds=HANG_SECONDS)
                worker.silent_seconds = 0.0
                os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        """Collect the exit statuses of workers that have exited, and schedule their restarts."""
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if worker := self._running.pop(process, None):  # otherwise the process is an orphan, not a worker
                self._on_exit(process)
                if not self._stop_requests:
                    self._handle_exit(process, worker, os.waitstatus_to_exitcode(status))

    def _handle_exit(self, process: int, worker: _Worker, status: int) -> None:
        """Schedule the restart of a worker.

        If no worker has ever been ready, stop the service with the worker's exit status instead.
        """
        number = worker.number
        if not self._were_ready:
            self._failure = status if status >= 0 else 1
            if status not in _EXPLAINED_STATUSES:
                log.error("worker_died", worker=number, process=process, status=status)
            return
        if worker.ready_since is not None and time.monotonic() - worker.ready_since >= _STABLE_SECONDS:
            self._restart_delays.pop(number, None)
        delay = self._restart_delays.get(number, _MIN_RESTART_SECONDS)
        self._restart_delays[number] = min(2 * delay, _MAX_RESTART_SECONDS)
        self._restart_times[number] = time.monotonic() + delay
        log.error("worker_died", worker=number, process=process, status=status, again_in_seconds=delay)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._restart_times.items() if due <= now]:
            del self._restart_times[number]
            self._start(number)

    def _stop(self, signals: socket.socket) -> int:
        """Stop the workers.

        Kill the workers that exceed their time; on a second signal kill all workers. The exit status is then 1.
        """
        self._restart_times.clear()
        self._on_stop()
        for process in self._running:
            os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_seconds + _STOP_GRACE_SECONDS
        while self._running and self._stop_requests == 1 and time.monotonic() < deadline:
            self._step(signals)
        late = dict(self._running)
        for process, worker in late.items():
            log.error("worker_killed", worker=worker.number, process=process)
            os.kill(process, signal.SIGKILL)
        while self._running:
            self._step(signals)
        return 1 if late else 0


def _stop_with_parent() -> None:
    """Let Linux send SIGTERM to this worker when the supervisor dies, because nothing else would stop the worker."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
