"""The worker processes of bulk answers.

Processes, because with a static encoder a third of the time of a block passes in Python code, which only one thread of
a process runs at a time. They are started anew, not forked: ONNX Runtime and faiss do not survive a fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

from recollect.core.errors import WorkerError


class WorkerPool:
    """Some worker processes; `count` is their number. Use it as a context manager: its end kills them."""

    def __init__(self, count: int) -> None:
        self.count = count
        read, self._ours = Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(count, _Workers(), _end_with_main_process, (read,))

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._executor.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Start a call of a function in the next process that is idle.

        Raises:
            WorkerError: If a process ended.
        """
        with _reporting_ends():
            return self._executor.submit(function, *arguments)

    def result(self, call: Future[Any]) -> Any:
        """Wait for the result of a call.

        Raises:
            ServiceError: If the function raised one.
            WorkerError: If a process ended.
        """
        with _reporting_ends():
            return call.result()


@contextlib.contextmanager
def _reporting_ends() -> Iterator[None]:
    """Report the end of a worker process as a `WorkerError`."""
    try:
        yield
    except (BrokenProcessPool, MemoryError):
        raise WorkerError("a worker process ended; is there enough memory? Use fewer --workers") from None


class _Process(SpawnProcess):
    def start(self) -> None:
        """Start a process that does not run the user's program again, and that Ctrl-C on the terminal does not end."""
        main, mask = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Workers(SpawnContext):
    Process = _Process


def _end_with_main_process(pipe: Connection) -> None:
    """End this process when the main process closes its end of a pipe, or dies."""

    def wait() -> None:
        with contextlib.suppress(EOFError, OSError):
            pipe.recv_bytes()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
