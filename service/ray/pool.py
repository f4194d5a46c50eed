"""A pool of actors. If an actor dies, another one computes its block, and a new actor takes its place.

Each actor has a thread of this process, which gives it one block at a time. The transfer of a block takes milliseconds,
and its computation about a second, so an actor does not need a second block in advance.
"""

from __future__ import annotations

import heapq
import itertools
import re
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from recollect.service.errors import ServiceError, WorkerError
from recollect.service.ray.actor import Actor
from recollect.service.ray.cluster import require_own_machine

# An actor that dies is often the victim of another program, so its block is tried again. If so many actors die with the
# same block, or before they are open, then the block or the program needs more memory than there is.
_ATTEMPTS = 3
# Seconds between two checks of the cluster while an actor waits for a core.
_CHECK_SECONDS = 10.0

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(order=True)
class _Job:
    """A block that waits. Blocks are ordered by their place in the input: the output needs the first one first."""

    first: int
    number: int
    payload: bytes = field(compare=False)
    result: Future[Any] = field(compare=False, default_factory=Future)
    attempts: int = field(compare=False, default=0)


class ActorPool:
    """Actors of the connected cluster. All of them run the same program.

    Args:
        module: Name of the module of the program; see `recollect.service.ray.actor`.
        task: The argument of its function `open_program`.
        count: Number of actors. If the cluster has too few free cores, the other actors start when cores are free.
        gpus: Number of GPUs of each actor.

    Raises:
        ServiceError: If the program does not open.
        ClusterError: If Ray's processes on this machine have ended.
    """

    def __init__(self, module: str, task: bytes, count: int, gpus: float = 0) -> None:
        self._module, self._task = module, task
        self._class = ray.remote(num_cpus=1, num_gpus=gpus)(Actor)
        self._actors = set[Any]()
        self._waiting: list[_Job] = []
        self._numbers = itertools.count()
        self._serving, self._opened, self._noted = count, False, False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        try:
            for thread in self._threads:
                thread.start()
            with self._changed:
                self._changed.wait_for(lambda: self._opened or self._error is not None)
                if self._error is not None:
                    raise self._error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ActorPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, payload: bytes, first: int) -> Future[Any]:
        """Let the next idle actor compute a block. `first` is the number of rows before the block."""
        job = _Job(first, next(self._numbers), payload)
        self._put(job)
        return job.result

    def close(self) -> None:
        """End all actors."""
        self._end(WorkerError("the actors of Ray have ended; start the command again"))
        with self._changed:
            for actor in self._actors:
                ray.kill(actor)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # without an end of the pool, blocks could wait forever for this thread
            self._end(WorkerError(f"a thread that serves an actor of Ray failed: {error!r}"))

    def _serve(self) -> None:
        """Give blocks to an actor and to its successors until the pool ends, or too many of them have died."""
        deaths, last = 0, None
        while deaths < _ATTEMPTS and (actor := self._start()) is not None:
            try:
                self._open(actor)
                while (job := self._next()) is not None:
                    self._compute(actor, job)
                    deaths = 0
            except RayTaskError as error:
                cause = repr(error.cause or error)
                self._end(WorkerError(f"an actor of Ray failed: {cause[:300]}"))
            except RayError as error:
                deaths, last = deaths + 1, error
            except ServiceError as error:
                self._end(error)
            finally:
                self._stop(actor)
        with self._changed:
            self._serving -= 1
            if self._serving == 0 and last is not None:
                self._end(_too_often("before it answered a block", last))

    def _start(self) -> Any:
        """Start an actor; return None if the pool has ended."""
        with self._changed:
            if self._error is not None:
                return None
            actor = self._class.remote()
            self._actors.add(actor)
            return actor

    def _stop(self, actor: Any) -> None:
        with self._changed:
            self._actors.discard(actor)
        ray.kill(actor)

    def _open(self, actor: Any) -> None:
        self._wait_for_core(actor)
        problem = ray.get(actor.open.remote(self._module, self._task))
        if problem is not None:
            raise ServiceError(problem)
        with self._changed:
            self._opened = True
            self._changed.notify_all()

    def _wait_for_core(self, actor: Any) -> None:
        started = actor.__ray_ready__.remote()
        while not ray.wait([started], timeout=_CHECK_SECONDS)[0]:
            require_own_machine()
            with self._changed:
                if not self._opened and not self._noted:
                    self._noted = True
                    print("waiting for a free core of the Ray cluster; see `ray status`", file=sys.stderr)  # noqa: T201

    def _compute(self, actor: Any, job: _Job) -> None:
        try:
            job.result.set_result(ray.get(actor.answer.remote(job.payload, job.first)))
        except Exception as error:
            # Of Ray's errors, only a RayTaskError comes from the program. After the others, the actor, its machine or
            # the result is lost.
            if isinstance(error, RayError) and not isinstance(error, RayTaskError):
                job.attempts += 1
            if job.attempts < _ATTEMPTS:
                self._put(job)
            else:
                job.result.set_exception(_too_often(f"with the block after row {job.first:,}", error))
            raise

    def _put(self, job: _Job) -> None:
        with self._changed:
            if self._error is None:
                heapq.heappush(self._waiting, job)
                self._changed.notify_all()
            else:
                job.result.set_exception(self._error)

    def _next(self) -> _Job | None:
        """The first block that waits; None if the pool has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error is not None)
            return heapq.heappop(self._waiting) if self._error is None else None

    def _end(self, error: Exception) -> None:
        """Give the error to all blocks that wait, and to all later ones."""
        with self._changed:
            self._error = self._error or error
            for job in self._waiting:
                job.result.set_exception(self._error)
            self._waiting.clear()
            self._changed.notify_all()


def _too_often(when: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"an actor of Ray ended {_ATTEMPTS} times {when}; is there enough memory? Ray's reason: {_reason(error)}"
    )


def _reason(error: Exception) -> str:
    """Ray's reason in one line. Of a long text, the beginning and the end name the cause."""
    text = " ".join(_COLOUR.sub("", str(error)).split())
    return text if len(text) <= 400 else f"{text[:200]} ... {text[-200:]}"
