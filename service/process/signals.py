"""How a process handles SIGTERM and SIGINT before its event loop runs, while it runs, and after it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator

import structlog

log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_stop_signals() -> None:
    """End this process with status 0 on SIGTERM and SIGINT.

    Without a handler, process 1 of a container ignores these signals.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))


def stop_event(exit_on_second: bool) -> asyncio.Event:
    """Return an event that the first stop signal sets.

    Args:
        exit_on_second: Whether a second signal ends this process at once, with status 0. False for a worker, because
            it may receive the first signal twice: from a terminal and from its supervisor.

    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set() and exit_on_second:
            exit_at_once()
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    return stop


def exit_at_once() -> None:
    """End this process with status 0, without the end of its tasks and threads."""
    log.info("stopped_at_once")
    sys.stdout.flush()
    os._exit(0)  # a normal exit cancels the loop's tasks, and uvicorn logs a traceback for each of them


def ignore_loop_stop_signals() -> None:
    """Ignore stop signals from now on; call this before the event loop ends."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.remove_signal_handler(number)  # otherwise the loop restores the default handler when it closes
    ignore_stop_signals()


def ignore_stop_signals() -> None:
    """Ignore SIGTERM and SIGINT in a process that is about to exit, so that its exit status does not change."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def block_stop_signals() -> None:
    """Keep SIGTERM and SIGINT pending until `unblock_stop_signals` is called."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextlib.contextmanager
def signal_socket() -> Iterator[socket.socket]:
    """Return a socket that receives the numbers of stop signals and of SIGCHLD; `select` can wait for it."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        ignore_stop_signals()
        leave_signal_socket()
        reader.close()
        writer.close()


def leave_signal_socket() -> None:
    """Stop writing signal numbers to the socket of `signal_socket`.

    A forked process must call this function, because it shares the socket with its parent.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
