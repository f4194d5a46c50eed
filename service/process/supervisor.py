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
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from service.errors import ServiceError
from service.process.signals import STOPPING, exit_when_told, heard, hold_back, release, stop_hearing

log = structlog.get_logger(__name__)

# What a worker does: given its number and what to call once it answers.
Work = Callable[[int, Callable[[], None]], None]

# Before a worker that died is started again; twice as long after each that did not answer for a while.
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0
# A worker that answered for so long was sound: that it died does not say that the next one will.
_SOUND_SECONDS = 10.0
# What workers may take to stop beyond the time they were given.
_GRACE_SECONDS = 5.0
# Exit statuses of a worker that was told to stop, or said itself what is wrong.
_EXPLAINED = (0, 1, 2)
_PR_SET_PDEATHSIG = 1


@dataclass
class _Worker:
    number: int
    answers_since: float | None = None


class Workers:
    """So many processes doing the same work, until SIGTERM or SIGINT; a second one kills who has not stopped yet.

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
        self._living: dict[int, _Worker] = {}
        self._answered: set[int] = set()
        self._due: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._failure: int | None = None
        self._asked_to_stop = 0

    def run(self, all_ready: Callable[[], None]) -> int:
        """Run them; the exit status.

        The first is alone until it answers: where it cannot, no other could, and its status is the whole's.

        Args:
            all_ready: Called once each of them has answered; never, as long as there is one that has not.
        """
        self._reader, self._writer = os.pipe()
        with heard() as signals:
            self._start(0)
            while not (self._asked_to_stop or self._answered or self._failure is not None):
                self._look(signals)
            if self._failure is not None:
                return self._failure
            if not self._asked_to_stop:
                for number in range(1, self._count):
                    self._start(number)
            while not self._asked_to_stop and len(self._answered) < self._count:
                self._look(signals)
            if not self._asked_to_stop:
                all_ready()
            while not self._asked_to_stop:
                self._look(signals)
            return self._stop(signals)

    def _start(self, number: int) -> None:
        hold_back()  # until the new process has handlers of its own
        if process := os.fork():
            release()
            self._living[process] = _Worker(number)
            return
        status = 1
        try:
            status = self._outcome(number)
        finally:
            os._exit(status)

    def _outcome(self, number: int) -> int:
        """Work; the exit status. What is wrong is said here."""
        try:
            stop_hearing()
            exit_when_told()
            release()
            _end_with_parent()
            self._work(number, lambda: _tell(self._writer, number))
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 1
        except ServiceError as error:
            print(f"recollect serve: {error}", file=sys.stderr, flush=True)  # noqa: T201
            return error.exit_status
        except Exception as error:
            log.error("worker_failed", worker=number, exc_info=error)
            return 1
        return 0

    def _look(self, signals: socket.socket) -> None:
        """Wait for news, and act on it."""
        now = time.monotonic()
        soon = min([due - now for due in self._due.values()], default=1.0)
        readable, _, _ = select.select([signals.fileno(), self._reader], [], [], max(0.0, min(soon, 1.0)))
        if signals.fileno() in readable:
            self._asked_to_stop += sum(number in STOPPING for number in signals.recv(4096))
        if self._reader in readable:
            self._hear_answering(os.read(self._reader, 4096))
        self._bury()
        if not self._asked_to_stop:
            for number in [each for each, due in self._due.items() if due <= time.monotonic()]:
                del self._due[number]
                self._start(number)

    def _hear_answering(self, numbers: bytes) -> None:
        self._answered.update(numbers)
        for worker in self._living.values():
            if worker.number in numbers:
                worker.answers_since = time.monotonic()

    def _bury(self) -> None:
        """Take note of who died."""
        while self._living:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if worker := self._living.pop(process, None):  # else an orphan that a container's first process inherits
                self._buried(process)
                if not self._asked_to_stop:
                    self._mourn(process, worker, os.waitstatus_to_exitcode(status))

    def _mourn(self, process: int, worker: _Worker, status: int) -> None:
        """Have a worker that died be replaced, or, where none has ever answered, remember its status as the whole's."""
        number = worker.number
        if not self._answered:
            self._failure = status if status >= 0 else 1
            if status not in _EXPLAINED:
                log.error("worker_died", worker=number, process=process, status=status)
            return
        if worker.answers_since is not None and time.monotonic() - worker.answers_since >= _SOUND_SECONDS:
            self._pauses.pop(number, None)
        pause = self._pauses.get(number, _SHORTEST_PAUSE_SECONDS)
        self._pauses[number] = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._due[number] = time.monotonic() + pause
        log.error("worker_died", worker=number, process=process, status=status, again_in_seconds=pause)

    def _stop(self, signals: socket.socket) -> int:
        """Have them drain; who takes too long, or is not waited for any more, is killed, and the status is 1."""
        self._due.clear()
        self._tell_stopping()
        for process in self._living:
            os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_seconds + _GRACE_SECONDS
        while self._living and self._asked_to_stop == 1 and time.monotonic() < deadline:
            self._look(signals)
        late = list(self._living)
        for process in late:
            log.error("worker_killed", worker=self._living[process].number, process=process)
            os.kill(process, signal.SIGKILL)
        while self._living:
            self._look(signals)
        return 1 if late else 0


def _end_with_parent() -> None:
    """Have Linux stop this process when the watcher is killed: nobody would start or stop it any more."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _tell(writer: int, number: int) -> None:
    os.write(writer, bytes([number]))
