"""The results of calls in other processes, in the order of their items."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_Call = TypeVar("_Call")
_Result = TypeVar("_Result")


def in_order(
    items: Iterable[_Item], submit: Callable[[_Item], _Call], result: Callable[[_Call], _Result], most: int
) -> Iterator[_Result]:
    """The results of calls, in the order of their items.

    A thread reads the items, because the results of the first lines of a pipe must not wait for the next line.

    Args:
        items: Arguments of the calls.
        submit: Starts a call.
        result: Waits for its result.
        most: Number of calls that are started, and whose results are not used yet.
    """
    waiting = queue.SimpleQueue[_Call | BaseException | None]()
    free, ended = threading.Semaphore(most), False

    def read() -> None:
        try:
            for item in items:
                free.acquire()
                if ended:
                    return
                waiting.put(submit(item))
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (found := waiting.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield result(found)
            free.release()
    finally:
        ended = True
        free.release()
