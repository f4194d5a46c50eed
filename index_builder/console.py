"""What a build tells its user while it works, on standard error: results alone go to standard output."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201
