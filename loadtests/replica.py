"""A replica: `recollect serve` in a separate process, with a log file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtests.client import Address

_TIMEOUT_SECONDS = 60.0


class ReplicaError(Exception):
    """A replica did not start or did not stop in time."""


class Replica:
    """A server on one port. It can be killed and started again.

    Args:
        store: Bundle store to serve.
        folder: Folder for the log.
        port: Port to listen on; 0 takes any free port.
        flags: Other flags of `recollect serve`.
        settings: Settings of `recollect serve`; they become environment variables.
    """

    def __init__(self, store: Path, folder: Path, port: int = 0, flags: list[str] | None = None, **settings: object):
        self._command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), "--port", str(port)]
        self._command += flags or []
        self._environment = os.environ | {f"RECOLLECT_{name}".upper(): str(of) for name, of in settings.items()}
        self._log = folder / f"replica-{port}.log"
        self._log_start = 0
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers requests.

        Raises:
            ReplicaError: If the server ends, or does not answer in time.
        """
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=log, env=self._environment)
        url = self._wait_for("serving")["url"]
        self.address = Address("127.0.0.1", int(url.rpartition(":")[2]))

    @property
    def process(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Stop the server with SIGTERM, and return its exit status.

        Raises:
            ReplicaError: If the server does not stop in time.
        """
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ReplicaError(f"a replica was still running {_TIMEOUT_SECONDS:.0f} s after SIGTERM") from None

    def _wait_for(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            with self._log.open("rb") as log:
                log.seek(self._log_start)
                lines = log.read().rpartition(b"\n")[0].decode().splitlines()
            for line in lines:
                if line.startswith("{") and (found := json.loads(line))["event"] == event:
                    return dict(found)
            if ended:
                break
            time.sleep(0.02)
        self._process.kill()
        raise ReplicaError(f"`recollect serve` did not start: {lines[-1] if lines else 'it printed nothing'}")


@contextlib.contextmanager
def replica(store: Path, flags: list[str] | None = None, **settings: object) -> Iterator[Replica]:
    """Run a replica on a free port while the `with` block runs."""
    with tempfile.TemporaryDirectory() as folder:
        started = Replica(store, Path(folder), 0, flags, **settings)
        try:
            yield started
        finally:
            started.stop()
