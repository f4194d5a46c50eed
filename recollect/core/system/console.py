"""Output of commands: results on standard output; messages and progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tqdm import tqdm

_Item = TypeVar("_Item")

_SECONDS_IN_LOG = 10.0


def printable(text: str) -> str:
    """Escape control characters, because those of a text from outside could change the state of a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_line(line: str) -> None:
    """Print a result to standard output."""
    print(printable(line))  # noqa: T201


def print_status(message: str) -> None:
    """Print a message to standard error. Standard output holds results only."""
    print(printable(message), file=sys.stderr)  # noqa: T201


def aligned(rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust) -> list[str]:
    """The lines of a table whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(justify(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def progress_bar(
    total: int | None, unit: str, name: str, done: int = 0, shown: bool = True, counts: bool = True
) -> tqdm[Any]:
    """Show the progress of a task on standard error: a bar on a terminal; in a log file, a line every ten seconds.

    A task that takes less than ten seconds writes nothing to a log.

    Args:
        total: Number of units of the whole task; None if it is unknown.
        unit: Name of a unit, such as `text`.
        done: Number of units that an earlier run has done.
        counts: Whether to show the number of units and the rate, or only the percentage and the time.
    """
    from tqdm import tqdm

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
        unit_scale=total is None or total >= 1000,
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
