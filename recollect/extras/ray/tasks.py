"""Calls of functions as tasks of Ray, on the cluster at an address. Ray is imported when it is needed: that is slow."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from recollect.core.errors import ClusterError, ServiceError, SettingsError, WorkerError

# A process that dies is often the victim of another program, so Ray repeats its task. If so many processes die with the
# same task, then it needs more memory than there is.
_ATTEMPTS = 3
_PROBE_SECONDS = 10.0
# The first bytes of an HTTP/2 connection. A gRPC server, such as Ray's, answers with a frame of type 4.
_HTTP2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def check_address(address: str) -> None:
    """Check that a server answers at the address, because Ray tries a wrong one for minutes.

    Raises:
        SettingsError: If the address is malformed.
        ClusterError: If no server answers.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise SettingsError(
            f"--ray: expected HOST:PORT of a cluster, the word auto, or no value, found {address}; "
            "`ray start --head` prints the address of its cluster"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as connection:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(_HTTP2_START)
            answers = os.environ.get("RAY_USE_TLS", "0") != "0" or connection.recv(9)[3:4] == b"\x04"
    except (OSError, UnicodeError) as error:
        raise _no_cluster(address, str(error).split("] ")[-1]) from None
    if not answers:
        raise _no_cluster(address, "another server")


def _no_cluster(address: str, found: str) -> ClusterError:
    advice = "start one with `ray start --head`, compare the versions of Ray and Python, or omit the address"
    return ClusterError(f"--ray {address}: expected a Ray cluster, found: {found}; {advice}")


@contextlib.contextmanager
def open_tasks(address: str, count: int) -> Iterator[RayTasks]:
    """Connect this process to a cluster.

    Args:
        address: HOST:PORT of the cluster, or the word auto for the cluster of which this machine is a node.
        count: Number of calls that run at the same time, if the cluster has so many free cores; 0: one for each core.

    Raises:
        ClusterError: If there is no cluster, or it does not accept this process.
    """
    os.environ.setdefault("RAY_task_oom_retries", str(_ATTEMPTS - 1))  # stays set, because Ray reads it once
    import ray

    with contextlib.redirect_stdout(sys.stderr):  # for messages of Ray's threads
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises errors of many classes
            raise _no_cluster(address, " ".join(str(error).split())[:300]) from None
        try:
            tasks = RayTasks(count or int(ray.cluster_resources().get("CPU", 0)))  # type: ignore[no-untyped-call]
            try:
                yield tasks
            finally:
                tasks.end()
        finally:
            ray.shutdown()


class RayTasks:
    """Calls of functions in processes of the connected cluster, at most `count` at the same time.

    A call may keep what it has opened for the next call: Ray gives a process one call after another. If a process or
    its machine is lost, Ray repeats the call in another process.
    """

    def __init__(self, count: int) -> None:
        import ray

        self.count = count
        self._call = ray.remote(max_retries=_ATTEMPTS - 1, num_cpus=1, max_calls=0)(_call)
        self._free, self._lock, self._open, self._answered = threading.Semaphore(count), threading.Lock(), True, False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Start a call as soon as less than `count` calls run."""
        self._free.acquire()
        with self._lock:
            if not self._open:
                raise WorkerError("Ray has ended; start the command again")
            call = self._call.remote(function, *arguments)
            call.future().add_done_callback(lambda _: self._free.release())
            return call

    def end(self) -> None:
        """Refuse later calls, which would start Ray again."""
        with self._lock:
            self._open = False

    def result(self, call: Any) -> Any:
        """Wait for the result of a call.

        Raises:
            ServiceError: If the function raised one, or an error of the system.
            WorkerError: If too many processes died with this call.
            ClusterError: If Ray's processes on this machine have ended.
        """
        import ray

        if not self._answered and not ray.wait([call], timeout=_PROBE_SECONDS)[0]:
            print("waiting for Ray; `ray status` shows whether a core is free", file=sys.stderr)  # noqa: T201
        self._answered = True
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            if hasattr(error.cause, "exit_status"):
                raise error.cause from None
            raise WorkerError(f"a task of Ray failed: {error.cause or error!r}") from None
        except ray.exceptions.LocalRayletDiedError:
            found = "that Ray's processes on this machine have ended; is there enough memory?"
            raise ClusterError(f"--ray: expected Ray to run, found {found} Start the command again") from None
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:400]
            raise WorkerError(
                f"a process of Ray ended {_ATTEMPTS} times with the same task; is there enough memory? Use fewer "
                f"--workers. Ray's reason: {reason}"
            ) from None


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (OSError, ModuleNotFoundError) as error:
        raise ServiceError(f"{socket.gethostname()}: {error}") from None
