"""`recollect serve`: the setup that runs once, before the first worker starts.

`worker.py` contains the setup that runs in each worker process. This module imports no numerical libraries: the thread
limits must be in the environment before these libraries load, and the supervisor must fork before they start threads.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator

import structlog

from service.addresses import listen, url
from service.process.signals import exit_on_stop_signals
from service.settings import SHARED_METRICS, ServeSettings, require_consistent, unknown_variables
from service.telemetry.logs import configure_logs
from service.threads import ThreadBudget

log = structlog.get_logger(__name__)


def serve(settings: ServeSettings, listener: socket.socket | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status.

    Args:
        settings: All settings of the service.
        listener: A listening socket that is used instead of --host and --port.

    Raises:
        SettingsError: If settings contradict each other.
        AddressError: If an address is not available.
        ServiceError: If the current version of the store cannot be served.
    """
    exit_on_stop_signals()  # until the event loop or the supervisor handles these signals
    require_consistent(settings)
    with contextlib.ExitStack() as stack:
        public = listener or stack.enter_context(listen(settings.host, settings.port))
        admin = None
        if settings.admin_port is not None:
            admin = stack.enter_context(listen(settings.admin_host, settings.admin_port))
        configure_logs()
        for name in unknown_variables(settings):
            log.warning("unknown_environment_variable", name=name)
        budget = ThreadBudget.of(settings.workers, settings.threads)
        variables = budget.apply()
        _raise_file_limit()

        def log_start() -> None:
            log.info("thread_budget", cores=budget.cores, workers=budget.workers, threads=budget.threads, **variables)
            if budget.exceeded:
                log.warning("more_threads_than_cores", cores=budget.cores, threads=budget.workers * budget.threads)
            if settings.redis_url is not None and settings.redis_secret is None and settings.cache_mb:
                log.warning("shared_answer_cache_off", reason="Redis could change the answers; set --redis-secret")
            log.info("serving", url=url(public), admin=url(admin) if admin else None, workers=settings.workers)

        if settings.workers == 1:
            _work(settings, public, admin, log_start)
            return 0
        stack.enter_context(_shared_metrics())
        return _supervise(settings, public, admin, log_start)


def _supervise(
    settings: ServeSettings, public: socket.socket, admin: socket.socket | None, on_ready: Callable[[], None]
) -> int:
    """Serve with several worker processes; the first worker also serves the admin interface."""
    from service.process.supervisor import Supervisor
    from service.telemetry.metrics import forget_process

    def work(number: int, heartbeat: Callable[[], None]) -> None:
        structlog.contextvars.bind_contextvars(worker=number)
        _work(settings, public, None if number else admin, on_ready=heartbeat, heartbeat=heartbeat)

    def close_sockets() -> None:
        """Close the listening sockets, so that new connections are refused when no worker accepts them any more."""
        for held in (public, admin):
            if held is not None:
                held.close()

    supervisor = Supervisor(settings.workers, work, settings.drain_seconds, close_sockets, on_exit=forget_process)
    return supervisor.run(on_ready)


def _work(
    settings: ServeSettings,
    public: socket.socket,
    admin: socket.socket | None,
    on_ready: Callable[[], None],
    heartbeat: Callable[[], None] | None = None,
) -> None:
    from service.process.worker import Sockets, serve_sockets

    serve_sockets(settings, Sockets(public, admin), on_ready, heartbeat)


def _raise_file_limit() -> None:
    """Raise the limit of open connections of this process to the maximum that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """A temporary folder in which workers share their metrics."""
    folder = tempfile.mkdtemp(prefix="recollect-metrics-")
    os.environ[SHARED_METRICS] = folder
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
