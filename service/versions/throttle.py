"""Leisure: work that is in nobody's way, as opening a version beside the one that is served must be.

A thread of low priority would not do: when it holds Python's lock and is not scheduled, it holds up all that answer.
So work that is done at leisure rests between its steps instead, so many times as long as the step took.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

# Seconds of rest for each second of work.
_REST = 9.0


class AbandonedError(Exception):
    """What was done at leisure need not be done any more."""


@dataclass
class _Leisure:
    busy: Callable[[], bool]
    abandoned: threading.Event
    since: float


_leisure: ContextVar[_Leisure | None] = ContextVar("leisure", default=None)


@contextlib.contextmanager
def at_leisure(busy: Callable[[], bool], abandoned: threading.Event) -> Iterator[None]:
    """Have the work of this thread rest wherever it calls `rest`, while `busy` says that it could be in the way.

    Raises:
        AbandonedError: From `rest`, once the event is set.
    """
    token = _leisure.set(_Leisure(busy, abandoned, time.monotonic()))
    try:
        yield
    finally:
        _leisure.reset(token)


def leisurely() -> bool:
    """Whether this thread works at leisure."""
    return _leisure.get() is not None


def rest() -> None:
    """A step is done: rest, where there is leisure."""
    if (leisure := _leisure.get()) is not None:
        seconds = _REST * (time.monotonic() - leisure.since) if leisure.busy() else 0.0
        if leisure.abandoned.wait(seconds):
            raise AbandonedError
        leisure.since = time.monotonic()
