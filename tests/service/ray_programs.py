"""Programs of actors: see `recollect.service.ray.actor`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from recollect.service.errors import BundleError


def open_program(task: bytes) -> Callable[[bytes, int], bytes]:
    """The task is `refuse` or `die`, or nothing. A block is a word: `die`, `die once PATH`, or anything else."""
    if task == b"refuse":
        raise BundleError("no such bundle")
    if task == b"die":
        os.kill(os.getpid(), signal.SIGKILL)

    def answer(payload: bytes, first: int) -> bytes:
        word, _, path = payload.decode().partition(" once ")
        if word == "die" and not (path and os.path.exists(path)):
            if path:
                open(path, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "fill":
            raise MemoryError
        return payload.upper()

    return answer
