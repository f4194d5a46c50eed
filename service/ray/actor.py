"""The actor: a process of Ray that opens a program once, and then answers blocks with it.

A program is a module with a function `open_program(task: bytes)`, which returns a function. That function takes the
payload of a block and the number of rows before it; its results are the result of the block.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from typing import Any


class Actor:
    """The class of the actors. Ray runs one call at a time, each in the process of the actor."""

    _answer: Callable[[bytes, int], Any]

    def open(self, module: str, task: bytes) -> str | None:
        """Open the program; return the message of an error that the user can correct."""
        try:
            self._answer = importlib.import_module(module).open_program(task)
        except (OSError, ModuleNotFoundError) as error:
            return f"{socket.gethostname()}: {error}"
        except Exception as error:
            if not hasattr(error, "exit_status"):  # an error without an exit status is a bug, which keeps its traceback
                raise
            return str(error)
        return None

    def answer(self, payload: bytes, first: int) -> Any:
        return self._answer(payload, first)

    def process(self) -> int:
        """The number of the process, for tests and for messages."""
        return os.getpid()
