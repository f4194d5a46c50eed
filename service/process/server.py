"""`recollect serve`: checks the settings, reserves the address, and runs uvicorn with one or several processes.

`worker.py` contains the setup of each serving process. This module imports no numerical libraries: the thread limits
must be in the environment before these libraries load, and the supervisor of several workers needs none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from recollect.core.errors import ServiceError, SettingsError
from recollect.core.settings import SHARED_METRICS, secrets_in_command_line, unknown_variables
from recollect.core.system.threads import ThreadBudget
from recollect.service.addresses import bind, is_loopback
from recollect.service.http.connection import add_connection
from recollect.service.process.drain import exiting_on_stop_signals, ignore_other_signals
from recollect.service.settings import ServeSettings, require_consistent
from recollect.service.telemetry.logs import configure_logs, flush_logs

log = structlog.get_logger(__name__)

# Maximum time in which a worker answers the supervisor; a suspended worker is then killed and replaced.
_WORKER_ANSWER_SECONDS = 10
# Pause of a replaced worker that cannot start, before the supervisor replaces it again.
_RESTART_SECONDS = 2.0
# Permissions of a file that let other users than its owner and its group read it.
_READABLE_BY_OTHERS = 0o004


def serve(settings: ServeSettings, bound: socket.socket | None = None) -> int:
    """Serve until a stop signal, and return the exit status. A socket from `bind` replaces --host and --port.

    Raises:
        SettingsError: If settings contradict each other, or the certificate cannot be used.
        AddressError: If an address is not available.
        ServiceError: If the current version of the store cannot be served.
    """
    require_consistent(settings)
    configure_logs()
    with contextlib.ExitStack() as stack:
        stack.callback(flush_logs)  # before the message of an error
        stack.enter_context(exiting_on_stop_signals())
        public = bound or stack.enter_context(bind(settings.host, settings.port))
        if settings.tls_cert and settings.tls_key:
            _require_certificate(settings.tls_cert, settings.tls_key)
        for path in filter(None, (settings.tls_key, settings.api_keys)):
            _warn_if_readable_by_others(path)
        for name in unknown_variables(settings):
            log.warning("unknown_environment_variable", name=name)
        ThreadBudget.of(settings.workers, settings.threads).apply()
        _raise_file_limit()
        if settings.workers == 1:
            ignore_other_signals()
            uvicorn.Server(_config(settings, Application(settings, public))).run([public])
            return 0
        folder = stack.enter_context(_shared_folder())
        return _serve_with_workers(settings, Application(settings, public, folder), folder)


@dataclass(frozen=True)
class Application:
    """Creates the application in the process that serves it; uvicorn sends this object to its worker processes."""

    settings: ServeSettings
    public: socket.socket
    folder: Path | None = None  # which several workers share

    def __call__(self) -> ASGIApp:
        """Open the current version, and listen. A worker prints its error and exits."""
        if self.folder is None:
            application = self._open()
            _log_start(self.settings)
            return application
        configure_logs(worker=os.getpid())
        try:
            application = self._open()
        except ServiceError as error:
            self._exit(self.folder, error)
        with contextlib.suppress(FileExistsError), (self.folder / "started").open("x"):
            _log_start(self.settings)
        return application

    def _open(self) -> ASGIApp:
        with exiting_on_stop_signals():  # uvicorn's handlers would wait for the end of the start
            with exiting_on_stop_signals(importing=True):
                from recollect.service.process.worker import open_application
            return open_application(self.settings, self.public)

    def _exit(self, folder: Path, error: ServiceError) -> NoReturn:
        """End this worker. At the start of the service, only the first worker that fails prints its error."""
        if (folder / "started").exists():
            log.error("worker_failed", error=str(error), again_in_seconds=_RESTART_SECONDS)
            time.sleep(_RESTART_SECONDS)
            sys.exit(1)
        with contextlib.suppress(FileExistsError), (folder / "failed").open("x") as file:
            file.write(str(error.exit_status))
            flush_logs()
            print(f"recollect serve: {error}", file=sys.stderr, flush=True)  # noqa: T201
        sys.exit(STARTUP_FAILURE)  # the supervisor then stops all workers


def _config(settings: ServeSettings, application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        factory=True,
        http=_Protocol,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        workers=settings.workers,
        timeout_worker_healthcheck=_WORKER_ANSWER_SECONDS,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which sends the head and the body of an answer together, and passes on the connection.

    uvicorn writes the head first. If the process is killed before it writes the body, a proxy has passed the head to
    the client already, and cannot send the request to another replica.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        add_connection(self.scope, self.transport)  # type: ignore[arg-type]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type]


class _JoinedWrites:
    """A transport that joins the writes of one step of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._waiting = transport, loop, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting += data

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, b""
        if waiting:
            self._transport.write(waiting)


class _Supervisor(Multiprocess):
    """uvicorn's supervisor, which stops on SIGHUP as a single process does."""

    def handle_hup(self) -> None:
        self.handle_term()


def _serve_with_workers(settings: ServeSettings, application: Application, folder: Path) -> int:
    """Serve with uvicorn's supervisor; return the exit status of the error if the service could not start."""
    supervised = logging.getLogger("uvicorn.error")
    supervised.setLevel(logging.INFO)  # such as "Child process died"
    # A worker prints the error of a start, so that the supervisor logs nothing before the first worker has started.
    supervised.addFilter(lambda record: (folder / "started").exists())
    supervisor = _Supervisor(_config(settings, application), [application.public])
    ignore_other_signals()  # after the supervisor has installed its handlers, which the workers would not inherit
    supervisor.run()
    failed = folder / "failed"
    return int(failed.read_text()) if failed.exists() else 0


def _log_start(settings: ServeSettings) -> None:
    """Log the number of threads, and settings that need attention; once, after the first version is open."""
    budget = ThreadBudget.of(settings.workers, settings.threads)
    log.info("thread_budget", cores=budget.cores, workers=budget.workers, threads=budget.threads, **budget.apply())
    if budget.exceeded:
        log.warning("more_threads_than_cores", cores=budget.cores, threads=budget.workers * budget.threads)
    for flag in secrets_in_command_line(settings, sys.argv):
        log.warning("secret_in_command_line", flag=flag, advice="other users see it in `ps`; set it as a variable")
    if not is_loopback(settings.host):
        log.warning(
            "open_to_other_machines",
            host=settings.host,
            advice="put a proxy with limits, such as deploy/nginx.conf, before clients that you do not trust",
        )


def _require_certificate(certificate: Path, key: Path) -> None:
    """Raise `SettingsError` if uvicorn cannot use a certificate and its private key."""
    try:
        # The password of an encrypted key is a wrong one, because OpenSSL would otherwise ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", getattr(error, "strerror", None)) or "no PEM block"
        raise SettingsError(
            f"--tls-cert {certificate}, --tls-key {key}: expected a certificate and its private key "
            f"in PEM format, without a password, found: {str(reason).lower().replace('_', ' ')}"
        ) from None


def _warn_if_readable_by_others(secrets: Path) -> None:
    with contextlib.suppress(OSError):  # a missing file is an error elsewhere
        if (mode := secrets.stat().st_mode) & _READABLE_BY_OTHERS:
            log.warning("secrets_readable_by_others", path=str(secrets), mode=f"{mode & 0o777:o}", advice="chmod 600")


def _raise_file_limit() -> None:
    """Raise the limit of open connections of this process to the maximum that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _shared_folder() -> Iterator[Path]:
    """A temporary folder in which workers share their metrics and the result of the start."""
    folder = tempfile.mkdtemp(prefix="recollect-workers-")
    os.environ[SHARED_METRICS] = folder
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
