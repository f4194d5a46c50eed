"""`recollect serve`: what is set up once, whether one process serves or many."""

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
from service.process.signals import exit_when_told
from service.settings import SHARED_METRICS, ServeSettings, require_consistent, unknown_variables
from service.telemetry.logs import configure_logs
from service.threads import ThreadBudget

log = structlog.get_logger(__name__)


def serve(settings: ServeSettings, listener: socket.socket | None = None) -> int:
    """Serve until SIGTERM or SIGINT says stop; the exit status.

    Nothing heavy is loaded here: the thread budget must be known before, and workers are forked from this process.

    Args:
        settings: All of the service's.
        listener: To serve on, where the address is taken already.

    Raises:
        SettingsError: If settings are at odds.
        AddressError: If it cannot listen where it was told to.
        ServiceError: If the current version cannot be served.
    """
    exit_when_told()  # until there is a loop that can drain
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

        def tell() -> None:
            log.info("thread_budget", cores=budget.cores, workers=budget.workers, threads=budget.threads, **variables)
            if budget.exceeded:
                log.warning("more_threads_than_cores", cores=budget.cores, threads=budget.workers * budget.threads)
            log.info("serving", url=url(public), admin=url(admin) if admin else None, workers=settings.workers)

        if settings.workers == 1:
            _work(settings, public, admin, tell)
            return 0
        stack.enter_context(_shared_metrics())
        return _supervise(settings, public, admin, tell)


def _supervise(
    settings: ServeSettings, public: socket.socket, admin: socket.socket | None, tell: Callable[[], None]
) -> int:
    """Have several processes serve; the first of them also the admin interface."""
    from service.process.supervisor import Workers
    from service.telemetry.metrics import forget_process

    def work(number: int, ready: Callable[[], None]) -> None:
        structlog.contextvars.bind_contextvars(worker=number)
        _work(settings, public, None if number else admin, ready)

    def stopping() -> None:
        for held in (public, admin):  # once no worker accepts any more, nobody seems to
            if held is not None:
                held.close()

    return Workers(settings.workers, work, settings.drain_seconds, stopping, buried=forget_process).run(tell)


def _work(
    settings: ServeSettings, public: socket.socket, admin: socket.socket | None, ready: Callable[[], None]
) -> None:
    from service.process.worker import Sockets, serve_sockets

    serve_sockets(settings, Sockets(public, admin), ready)


def _raise_file_limit() -> None:
    """Admit as many connections as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """A folder in which workers share their metrics, gone with the process that made it."""
    folder = tempfile.mkdtemp(prefix="recollect-metrics-")
    os.environ[SHARED_METRICS] = folder
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
