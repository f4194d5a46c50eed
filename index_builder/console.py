"""Progress messages of the index builder."""

from __future__ import annotations

import sys


def print_status(message: str) -> None:
    """Print a progress message to standard error. Standard output holds results only."""
    print(message, file=sys.stderr)  # noqa: T201
