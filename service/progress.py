"""Progress of a task: one line that changes on a terminal; in a log file, one line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_SECONDS_ON_TERMINAL, _SECONDS_IN_LOG = 0.2, 10.0
_BAR = 24


class Progress:
    """Prints rows, rows a second, share of the input and time left to standard error.

    Args:
        rows: Number of rows that an earlier run has answered.
        share: The share of the input that has been read; None if it is unknown.
        noun: The word for rows.
    """

    def __init__(
        self, rows: int, share: Callable[[], float | None], stream: TextIO | None = None, noun: str = "queries"
    ) -> None:
        self._noun = noun
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._first_rows, self._share = rows, share
        self._start = self._printed = time.monotonic()
        self._first_share: float | None = None

    def update(self, rows: int) -> None:
        """Print a line if the last line is old enough. `rows` is the number of all rows that are written."""
        now, share = time.monotonic(), self._share()
        if self._first_share is None:
            self._first_share = share
        if now - self._printed < (_SECONDS_ON_TERMINAL if self._on_terminal else _SECONDS_IN_LOG):
            return
        self._printed = now
        line = self._rate(rows, now)
        if share is not None and self._first_share is not None:
            filled = round(share * _BAR)
            bar = f"|{'#' * filled}{' ' * (_BAR - filled)}| " if self._on_terminal else ""
            line = f"{bar}{share:4.0%}  {line}"
            if share > self._first_share:
                left = (now - self._start) * (1 - share) / (share - self._first_share)
                line += f", {_clock(left)} left"
        self._print(line)

    def finish(self, rows: int) -> None:
        """Print the total."""
        now = time.monotonic()
        self._print(f"{self._rate(rows, now)}, {_clock(now - self._start)}")
        if self._on_terminal:
            self._stream.write("\n")

    def clear(self) -> None:
        """Remove an unfinished line from the terminal, so that a message can follow."""
        if self._on_terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()

    def _rate(self, rows: int, now: float) -> str:
        return f"{rows:,} {self._noun}, {(rows - self._first_rows) / max(now - self._start, 1e-9):,.0f}/s"

    def _print(self, line: str) -> None:
        self._stream.write(f"\r{line}\033[K" if self._on_terminal else f"{line}\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
