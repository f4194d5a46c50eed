"""The worker processes. Each one answers one block at a time.

Processes, because with a static encoder a third of the time of a block passes in Python code, which only one thread of
a process runs at a time. They are started as programs of their own, not forked: ONNX Runtime and faiss do not survive a
fork, and `multiprocessing` would run the user's program again to start them.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Pipe

from recollect.service.bulk.blocks import Answered, Block
from recollect.service.bulk.task import Task
from recollect.service.errors import ServiceError, WorkerError


class Worker:
    """A worker process."""

    def __init__(self, task: Task) -> None:
        self._connection, other = Pipe()
        path = [each or os.getcwd() for each in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "recollect.service.bulk.worker", str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            process_group=0,  # Ctrl-C on the terminal interrupts the main process only, which then ends the workers
        )
        other.close()
        self._connection.send_bytes(task.to_json())

    def wait_until_open(self) -> None:
        """Wait until the process can answer.

        Raises:
            ServiceError: If the version does not open.
        """
        state = json.loads(self._receive())
        if state["missing"]:
            raise ModuleNotFoundError(state["error"], name=state["missing"])
        if state["error"]:
            raise ServiceError(state["error"])

    def answer(self, block: Block) -> Answered:
        try:
            self._connection.send_bytes(str(block.first).encode())
            self._connection.send_bytes(block.payload)
        except ConnectionError:
            raise self._death() from None
        state = json.loads(self._receive())
        return Answered(self._receive(), state["rows"], state["error"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _receive(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            raise self._death() from None

    def _death(self) -> WorkerError:
        status = self._process.wait()
        return WorkerError(
            f"a worker process ended with status {status}" + ("; is there enough memory?" if status == -9 else "")
        )


class WorkerPool:
    """Some worker processes.

    Raises:
        ServiceError: If the version does not open.
    """

    def __init__(self, task: Task, count: int) -> None:
        self._idle = queue.SimpleQueue[Worker]()
        self._workers = list[Worker]()
        self._threads = ThreadPoolExecutor(count)
        try:
            self._workers += (Worker(task) for _ in range(count))
            for worker in self._workers:
                worker.wait_until_open()
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, block: Block) -> Future[Answered]:
        """Let the next idle worker answer a block."""
        return self._threads.submit(self._answer, block)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)

    def _answer(self, block: Block) -> Answered:
        worker = self._idle.get()
        try:
            return worker.answer(block)
        finally:
            self._idle.put(worker)
