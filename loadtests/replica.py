"""A replica: `recollect serve` in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loadtests.load import Address

_TIMEOUT_SECONDS = 60.0


class ReplicaError(Exception):
    """A replica did not start in time."""


class Replica(NamedTuple):
    """A server that answers requests.

    Attributes:
        address: Its address.
        process: Id of its process.
    """

    address: Address
    process: int


@contextlib.contextmanager
def replica(store: Path, flags: Sequence[str] = (), **settings: object) -> Iterator[Replica]:
    """Run a replica on a free port while the `with` block runs.

    Args:
        store: Bundle store to serve.
        flags: Flags of `recollect serve`.
        settings: Settings of `recollect serve`; they become environment variables.

    Raises:
        ReplicaError: If the server ends, or does not answer in time.
    """
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), "--port", "0", *flags]
    environment = os.environ | {f"RECOLLECT_{name}".upper(): str(of) for name, of in settings.items()}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, env=environment)
        try:
            yield Replica(_wait_for_address(process, log), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> Address:
    deadline, lines = time.monotonic() + _TIMEOUT_SECONDS, ["it printed nothing"]
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        lines = log.read_text().rpartition("\n")[0].splitlines() or lines
        for line in lines:
            if line.startswith("{") and (found := json.loads(line))["event"] == "serving":
                return Address("127.0.0.1", int(found["url"].rpartition(":")[2]))
        if ended:
            break
        time.sleep(0.02)
    raise ReplicaError(f"`recollect serve` did not start: {lines[-1]}")
