"""Swaps: one, waited for; and a storm of them, each as soon as the last version answers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from loadtests.client import Address, Connection, LostRequestError
from service.store.store import Store

_PATIENCE_SECONDS, _LOOK_SECONDS, _PAUSE_SECONDS = 60.0, 0.02, 0.1


def swap_to(store: Store, version: str, address: Address) -> None:
    """Activate a version and return once it answers.

    Raises:
        TimeoutError: If it does not.
    """
    store.activate(version)
    until = time.monotonic() + _PATIENCE_SECONDS
    with contextlib.closing(Connection(address)) as connection:
        while _serving(connection) != version:
            if time.monotonic() > until:
                raise TimeoutError(f"{version}: expected to answer {_PATIENCE_SECONDS:.0f} s after it was activated")
            time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def swap_storm(store: Store, versions: list[str], address: Address) -> Iterator[list[str]]:
    """Swap to versions in turn meanwhile; yields those swapped to, as they come to answer.

    Raises:
        TimeoutError: If one does not.
    """
    ended = threading.Event()
    swaps: list[str] = []

    def swap() -> None:
        for version in itertools.cycle(reversed(versions)):
            swap_to(store, version, address)
            swaps.append(version)
            if ended.wait(_PAUSE_SECONDS):
                return

    with ThreadPoolExecutor(1) as pool:
        storm = pool.submit(swap)
        try:
            yield swaps
        finally:
            ended.set()
        storm.result()


def _serving(connection: Connection) -> str:
    """The version that answers; empty where nothing does."""
    with contextlib.suppress(LostRequestError):
        return connection.get("/health/live").version
    return ""
