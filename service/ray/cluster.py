"""Ray on this machine, or the cluster at an address.

Ray is a package of the extra `recollect-xmc[ray]`. Only this folder imports it, and only if a user asks for Ray.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from recollect.service.errors import ClusterError, SettingsError
from recollect.service.ray.session_folder import session_folder

# The address that starts Ray on this machine, for the time of the task.
LOCAL = "local"
# Memory of Ray's object store on this machine, which holds the blocks on their way. Ray writes more blocks to the disk.
_STORE_BYTES = 512 << 20
_PROBE_SECONDS = 10.0
# The first bytes of an HTTP/2 connection. A gRPC server, such as Ray's, answers with a frame of type 4.
_HTTP2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def check_address(address: str) -> None:
    """Check that Ray is installed, and that a server answers at the address.

    Raises:
        SettingsError: If Ray is not installed, or the address is malformed.
        ClusterError: If no server answers.
    """
    if importlib.util.find_spec("ray") is None:
        raise SettingsError("--ray: expected the package ray, found none; pip install 'recollect-xmc[ray]'")
    if address not in (LOCAL, "auto"):
        _require_server(address)


@contextlib.contextmanager
def connected(address: str, cores: int) -> Iterator[None]:
    """Connect this process to Ray.

    Ray on this machine listens on the loopback interface only, demands a random token, and ends with the block of the
    `with` statement or with this process. No usage statistics are sent.

    Args:
        address: LOCAL; the word auto for the cluster that runs on this machine; or HOST:PORT of a cluster.
        cores: Number of cores that Ray uses if it starts on this machine.

    Raises:
        SettingsError: If Ray is not installed, or the address is malformed.
        ClusterError: If Ray does not start, or the cluster does not accept this process.
    """
    check_address(address)
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"address": address}
        if address == LOCAL:
            # Without this token, Ray writes one to ~/.ray. It stays set, because Ray reads it once in a process.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            # Ray's switch for systems on which it never forms clusters: all its ports are then ports of 127.0.0.1.
            stack.enter_context(_environment(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0"))
            # Actors import the modules that this program imports.
            stack.enter_context(_environment(PYTHONPATH=os.pathsep.join(each or os.getcwd() for each in sys.path)))
            # Actors get as much time of the processor as other programs. Ray would let all of them go first.
            stack.enter_context(_environment(RAY_worker_niceness="0"))
            options |= {"num_cpus": cores, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
            options["_temp_dir"] = stack.enter_context(session_folder())
        stack.enter_context(_environment(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0"))
        import ray

        stack.enter_context(contextlib.redirect_stdout(_WithoutRay(sys.stdout)))
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:  # Ray raises errors of many classes
            raise _not_connected(address, error) from None
        try:
            yield
        finally:
            ray.shutdown()


def _not_connected(address: str, error: Exception) -> ClusterError:
    reason = " ".join(str(error).split())[:300]
    if address == LOCAL:
        return ClusterError(
            f"--ray: expected Ray to start on this machine, found: {reason}; is there enough memory, and enough space "
            "in /tmp?"
        )
    if isinstance(error, ConnectionError):
        return ClusterError(
            f"--ray {address}: expected a Ray cluster with a node on this machine, found none; start one with "
            "`ray start`, or use --ray without an address"
        )
    return ClusterError(
        f"--ray {address}: expected Ray to accept this program, found: {reason}; compare the address, and the "
        "versions of Ray and Python, with those of the cluster"
    )


def cores_of_cluster() -> int:
    """Number of cores of all machines of the connected cluster."""
    return max(1, int(_resources().get("CPU", 1)))


def gpus_of_cluster() -> int:
    """Number of GPUs of all machines of the connected cluster."""
    return int(_resources().get("GPU", 0))


def require_own_machine() -> None:
    """Check that Ray still runs on this machine. Without it, this process gets no results, and starts no actors.

    Raises:
        ClusterError: If Ray's processes on this machine have ended.
    """
    import ray

    own = ray.get_runtime_context().get_node_id()
    if not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == own):  # type: ignore[no-untyped-call]
        raise ClusterError(
            "--ray: expected Ray to run on this machine, found that its processes have ended; is there enough memory? "
            "Start the command again"
        )


def _resources() -> dict[str, float]:
    import ray

    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def _require_server(address: str) -> None:
    """Check that a gRPC server answers, because Ray tries a wrong address for minutes.

    Raises:
        SettingsError: If the address is not HOST:PORT.
        ClusterError: If no such server answers.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise SettingsError(
            f"--ray: expected HOST:PORT of a cluster, the word auto, or no value, found {address}; "
            "`ray start --head` prints the address of its cluster"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as connection:
            connection.settimeout(_PROBE_SECONDS)
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return
            connection.sendall(_HTTP2_START)
            answer = connection.recv(9)
            if len(answer) < 4 or answer[3] != 4:
                raise ClusterError(f"--ray {address}: expected a Ray cluster, found another server; see `ray status`")
    except (OSError, UnicodeError) as error:
        reason = str(error).split("] ")[-1]
        raise ClusterError(
            f"--ray {address}: expected a Ray cluster, found: {reason}; start one with `ray start --head`, or use "
            "--ray without an address"
        ) from None


class _WithoutRay(io.TextIOBase):
    """A stream without the messages of Ray's threads about actors that died. The pool reports the fatal ones."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name.startswith("ray_") else self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables for the time of a block. Ray's processes inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
