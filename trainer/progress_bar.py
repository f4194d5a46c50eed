"""Progress bars: a bar on a terminal; in a log file, a line every ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

_Item = TypeVar("_Item")

_SECONDS_IN_LOG = 10.0


def progress_bar(total: int, unit: str, name: str, done: int = 0, shown: bool = True, counts: bool = True) -> tqdm[Any]:
    """Show the progress of a task on standard error. A task that takes less than ten seconds writes nothing to a log.

    Args:
        total: Number of units of the whole task.
        unit: Name of a unit, such as `text`.
        name: Name of the task.
        done: Number of units that an earlier run has done.
        shown: Whether to show anything.
        counts: Whether to show the number of units and the rate, or only the percentage and the time.
    """
    on_terminal = sys.stderr.isatty()
    options: dict[str, Any] = {"dynamic_ncols": True}
    if not on_terminal:
        options = {"mininterval": _SECONDS_IN_LOG, "delay": _SECONDS_IN_LOG, "ncols": 0}
    if not counts:
        bar = "{bar}" if on_terminal else ""
        options |= {
            "ncols": None,
            "bar_format": "{desc}: {percentage:3.0f}%" + bar + " [{elapsed}<{remaining}{postfix}]",
        }
    return tqdm(
        total=total,
        unit=unit,
        unit_scale=total >= 1000,
        desc=name,
        initial=done,
        disable=not shown,
        file=sys.stderr if on_terminal else _Lines(),
        **options,
    )


def with_progress(items: Sequence[_Item], unit: str, name: str) -> Iterator[_Item]:
    """Yield each item, and show how many are done."""
    with progress_bar(len(items), unit, name) as bar:
        for item in items:
            yield item
            bar.update()


class _Lines:
    """Writes each state of a bar to standard error, as a line of its own."""

    def write(self, text: str) -> None:
        if state := text.strip():
            sys.stderr.write(f"{state}\n")

    def flush(self) -> None:
        sys.stderr.flush()
