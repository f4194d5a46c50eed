"""The process: a socket, a bundle, uvicorn, and logs that are events."""

from __future__ import annotations

import logging
import signal
import socket
import sys

import structlog
import uvicorn

from service.app import create_app
from service.errors import AddressError
from service.live import Live
from service.settings import ServeSettings, unknown_variables
from service.store import open_store

log = structlog.get_logger(__name__)

# Batches are at work side by side, so that each gets one thread of the encoder's and one of faiss's.
_THREADS_A_BATCH = 1


def serve(settings: ServeSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT says stop.

    Raises:
        StoreError, BundleError: If the store's current version cannot be served.
        KeyFileError: If the key that bundles must be signed with cannot be read.
    """
    _configure_logs()
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))  # uvicorn ends by raising again the signal that stopped it
    for name in unknown_variables(settings):
        log.warning("unknown_environment_variable", name=name)
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    live = Live(store, _THREADS_A_BATCH, settings.poll_seconds, settings.device)
    live.open_current()
    log.info("serving", url=url(listener), version=live.version())
    config = uvicorn.Config(create_app(live, settings), log_config=None, access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def url(listener: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Take an address; requests wait there until `serve` answers them.

    Raises:
        AddressError: If the port is taken or the address is not ours.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot hold
        reason = str(error).split(" (")[0].split("] ")[-1]  # the rest repeats the address
        raise AddressError(
            f"{host}:{port}: expected an address to listen on, found: {reason}; "
            "choose another --host or --port (0: any free port)"
        ) from None


def _configure_logs() -> None:
    """One JSON event a line for machines, aligned text for a terminal; always on stderr."""
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: those hold queries, which are people's words.
    faults = [] if terminal else [structlog.processors.format_exc_info]
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, *faults, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)  # uvicorn's own words, in the same form
    formatted = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *faults, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=formatted))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
