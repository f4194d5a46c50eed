"""Workers: processes that serve the same sockets, and the one that watches over them.

The watcher forks before anything heavy is loaded, answers nothing itself, and holds the sockets open: a worker that
dies takes its own requests with it, and no other.
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
from collections.abc import Callable, Iterator

import structlog

from service.errors import ServiceError

log = structlog.get_logger(__name__)

# What a worker does: given its number and what to call once it answers.
Work = Callable[[int, Callable[[], None]], None]

# Before a worker that died is started again; twice as long after each that never answered.
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
# What workers may take to stop beyond the time they were given.
_GRACE_SECONDS = 5.0
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


class Workers:
    """So many processes doing the same work, until SIGTERM or SIGINT.

    Args:
        count: How many.
        work: What each does.
        stop_seconds: How long they may take to stop.
        stopping: Called once they are to stop.
        buried: Called with the process id of each that is gone.
    """

    def __init__(
        self,
        count: int,
        work: Work,
        stop_seconds: float,
        stopping: Callable[[], None],
        buried: Callable[[int], None],
    ) -> None:
        self._count, self._work, self._stop_seconds = count, work, stop_seconds
        self._tell_stopping, self._buried = stopping, buried
        self._numbers: dict[int, int] = {}
        self._ready: set[int] = set()
        self._due: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._stopping = False

    def run(self, all_ready: Callable[[], None]) -> int:
        """Run them; the exit status.

        The first is alone until it answers: where it cannot, no other could, and its status is the whole's.

        Args:
            all_ready: Called once all of them answer.
        """
        self._reader, self._writer = os.pipe()
        with _signals() as signals:
            self._start(0)
            while not self._stopping and len(self._ready) < self._count:
                if (status := self._look(signals)) is not None and not self._ready:
                    return status
                if self._ready and len(self._numbers) + len(self._due) < self._count:
                    for number in range(1, self._count):
                        self._start(number)
            if not self._stopping:
                all_ready()
            while not self._stopping:
                self._look(signals)
            return self._stop(signals)

    def _start(self, number: int) -> None:
        if process := os.fork():
            self._numbers[process] = number
            return
        status = 1
        try:
            _end_with_parent()
            for each in (*_STOPPING, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            self._work(number, lambda: _tell(self._writer, number))
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except ServiceError as error:
            print(f"recollect serve: {error}", file=sys.stderr)  # noqa: T201
            status = error.exit_status
        except Exception as error:
            log.error("worker_failed", worker=number, exc_info=error)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _look(self, signals: socket.socket) -> int | None:
        """Wait for news, and act on it; the status of a worker that ended, if one did."""
        now = time.monotonic()
        soon = min([due - now for due in self._due.values()], default=1.0)
        readable, _, _ = select.select([signals.fileno(), self._reader], [], [], max(0.0, min(soon, 1.0)))
        if signals.fileno() in readable:
            self._stopping |= any(number in _STOPPING for number in signals.recv(4096))
        if self._reader in readable:
            for number in os.read(self._reader, 4096):
                self._ready.add(number)
                self._pauses.pop(number, None)
        status = self._bury()
        if not self._stopping:
            for number in [each for each, due in self._due.items() if due <= time.monotonic()]:
                del self._due[number]
                self._start(number)
        return status

    def _bury(self) -> int | None:
        ended = None
        while self._numbers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            number, ended = self._numbers.pop(process), os.waitstatus_to_exitcode(status)
            self._buried(process)
            if self._ready and not self._stopping:
                pause = self._pauses.get(number, _SHORTEST_PAUSE_SECONDS)
                self._pauses[number] = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                self._due[number] = time.monotonic() + pause
                log.error("worker_died", worker=number, process=process, status=ended, again_in_seconds=pause)
        return ended

    def _stop(self, signals: socket.socket) -> int:
        """Have them drain; who takes too long is killed, and the status is 1."""
        self._tell_stopping()
        for process in self._numbers:
            os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_seconds + _GRACE_SECONDS
        while self._numbers and time.monotonic() < deadline:
            self._look(signals)
        late = list(self._numbers)
        for process in late:
            log.error("worker_killed", worker=self._numbers[process], process=process)
            os.kill(process, signal.SIGKILL)
        while self._numbers:
            self._look(signals)
        return 1 if late else 0


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket to read the numbers of signals from; none of them interrupts anything."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in (*_STOPPING, signal.SIGCHLD)}
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def _end_with_parent() -> None:
    """Have Linux stop this process when the watcher is killed: nobody would start or stop it any more."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _tell(writer: int, number: int) -> None:
    os.write(writer, bytes([number]))
