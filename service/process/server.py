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

from recollect.service.process.endpoints import Endpoints, reserve
from recollect.service.process.signals import exit_on_stop_signals
from recollect.service.serve_settings import ServeSettings, require_consistent
from recollect.service.settings import SHARED_METRICS, unknown_variables
from recollect.service.telemetry.logs import configure_logs
from recollect.service.threads import ThreadBudget

log = structlog.get_logger(__name__)


def serve(settings: ServeSettings, bound: socket.socket | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status.

    Args:
        settings: All settings of the service.
        bound: A socket from `bind` that is used instead of --host and --port.

    Raises:
        SettingsError: If settings contradict each other, or the certificate cannot be used.
        AddressError: If an address is not available.
        ServiceError: If the current version of the store cannot be served.
    """
    exit_on_stop_signals()  # until the event loop or the supervisor handles these signals
    require_consistent(settings)
    configure_logs()
    with contextlib.ExitStack() as stack:
        endpoints = stack.enter_context(reserve(settings, bound))
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
            admin = endpoints.admin.url if endpoints.admin else None
            log.info("serving", url=endpoints.public.url, admin=admin, workers=settings.workers)

        if settings.workers == 1:
            _work(settings, endpoints, log_start)
            return 0
        stack.enter_context(_shared_metrics())
        return _supervise(settings, endpoints, log_start)


def _supervise(settings: ServeSettings, endpoints: Endpoints, on_ready: Callable[[], None]) -> int:
    """Serve with several worker processes; the first worker also serves the admin interface and compacts."""
    from recollect.service.process.supervisor import Supervisor
    from recollect.service.telemetry.metrics import forget_process

    def work(number: int, heartbeat: Callable[[], None]) -> None:
        structlog.contextvars.bind_contextvars(worker=number)
        own = Endpoints(endpoints.public, None if number else endpoints.admin)
        given = settings.model_copy(update={"compact_at": None}) if number else settings
        _work(given, own, heartbeat, heartbeat, answer_while_opening=not supervisor.has_ready_worker())

    supervisor = Supervisor(settings.workers, work, settings.drain_seconds, endpoints.close, on_exit=forget_process)
    return supervisor.run(on_ready)


def _work(
    settings: ServeSettings,
    endpoints: Endpoints,
    on_ready: Callable[[], None],
    heartbeat: Callable[[], None] | None = None,
    answer_while_opening: bool = True,
) -> None:
    from recollect.service.process.worker import serve_endpoints

    serve_endpoints(settings, endpoints, on_ready, heartbeat, answer_while_opening)


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
