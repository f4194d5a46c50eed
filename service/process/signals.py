"""The signals that say stop: what they do before there is anything to drain, and how a loop hears of them."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Iterator

STOPPING = (signal.SIGTERM, signal.SIGINT)


def exit_when_told() -> None:
    """Have SIGTERM and SIGINT end this process with status 0, even where it is a container's first."""
    for number in STOPPING:
        signal.signal(number, lambda *_: sys.exit(0))


def hold_back() -> None:
    """Have the signals that say stop wait until `release`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


@contextlib.contextmanager
def heard() -> Iterator[socket.socket]:
    """A socket to read the numbers of signals from, a child's end among them; none of them interrupts anything."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in (*STOPPING, signal.SIGCHLD)}
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        stop_hearing()
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def stop_hearing() -> None:
    """Write the numbers of signals nowhere any more: a forked process must not write its own to its parent's socket."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
