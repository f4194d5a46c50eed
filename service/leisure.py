"""Leisure: work that is in nobody's way, as opening a version beside the one that is served must be.

A thread of low priority would not do: when it holds Python's lock and is not scheduled, it holds up all that answer.
So work that is done at leisure rests between its steps instead, so many times as long as the step took.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

# Seconds of rest for each second of work.
_REST = 9.0


@dataclass
class _Leisure:
    busy: Callable[[], bool]
    since: float


_leisure: ContextVar[_Leisure | None] = ContextVar("leisure", default=None)


@contextlib.contextmanager
def at_leisure(busy: Callable[[], bool]) -> Iterator[None]:
    """Have the work of this thread rest wherever it calls `rest`, while `busy` says that it could be in the way."""
    token = _leisure.set(_Leisure(busy, time.monotonic()))
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
        if leisure.busy():
            time.sleep(_REST * (time.monotonic() - leisure.since))
        leisure.since = time.monotonic()
