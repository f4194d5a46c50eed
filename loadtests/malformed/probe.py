"""Measures how long a server takes for its shortest answer, in a process of its own.

A thread of the load generator could not measure this, because it would wait for the other threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event

from loadtests.client import Address, Connection, LostRequestError

_PAUSE_SECONDS = 0.005


class Probe:
    """The times of the answers, in milliseconds, when the probe has ended; and the number of lost answers."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.lost = 0


@contextlib.contextmanager
def probing(address: Address) -> Iterator[Probe]:
    """Ask for /health/live again and again while the `with` block runs."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    stop = context.Event()
    process = context.Process(target=_probe, args=(address, stop, sender), daemon=True)
    process.start()
    probe = Probe()
    receiver.recv()  # the probe is ready
    try:
        yield probe
    finally:
        stop.set()
        probe.milliseconds, probe.lost = receiver.recv()
        process.join()


def _probe(address: Address, stop: Event, sender: Pipe) -> None:
    connection, milliseconds, lost = Connection(address), [], 0
    sender.send(None)
    while not stop.wait(_PAUSE_SECONDS):
        start = time.perf_counter()
        try:
            connection.get("/health/live")
        except LostRequestError:
            lost += 1
        milliseconds.append(1e3 * (time.perf_counter() - start))
    sender.send((milliseconds, lost))
