"""The servers of the contract, and their API keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests import processes
from tests.processes import Server

READER, EDITOR, SLOW = "reader-0123456789abcdef", "editor-0123456789abcdef", "slow-0123456789abcdef"
OPERATOR = "operator-0123456789abcdef"
KEYS = f"reader {READER} 0\neditor {EDITOR} 0 write\nslow {SLOW} 0.001\noperator {OPERATOR} 0 operate\n"


@contextlib.contextmanager
def serving(store: Path, *flags: object, writable: bool = True, **variables: str) -> Iterator[Server]:
    """Serve a store. The client of a writable server has an API key that may write."""
    flags = ("--poll-seconds", 0.1, *(["--writable"] if writable else []), *flags)
    keys, key = (KEYS, EDITOR) if writable else ("", "")
    with processes.serving(store, *flags, keys=keys, key=key, **variables) as server:
        yield server
