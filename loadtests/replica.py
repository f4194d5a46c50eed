"""A replica: `recollect serve` as a process of its own, its log, and the two versions that it may swap between."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtests.client import Address
from service.bundle.files import MANIFEST, SIGNATURE
from service.store.store import Store

_PATIENCE_SECONDS = 60.0


class ReplicaError(Exception):
    """A server that did not start, or did not stop as it should."""


class Replica:
    """A server on one port; it may be killed and started again there.

    Args:
        store: What it serves.
        folder: Where it logs.
        port: Where it listens; 0, any free one.
        flags: Further ones of `recollect serve`.
        settings: Of `recollect serve`, as environment variables without their prefix.
    """

    def __init__(self, store: Path, folder: Path, port: int = 0, flags: list[str] | None = None, **settings: object):
        self._command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), "--port", str(port)]
        self._command += flags or []
        self._environment = os.environ | {f"RECOLLECT_{name}".upper(): str(of) for name, of in settings.items()}
        self._log = folder / f"replica-{port}.log"
        self._log_start = 0
        self.start()

    def start(self) -> None:
        """Start, and return once it serves.

        Raises:
            ReplicaError: If it ends instead.
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
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to stop; its exit status.

        Raises:
            ReplicaError: If it goes on.
        """
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ReplicaError(f"a replica went on for {_PATIENCE_SECONDS:.0f} s after SIGTERM") from None

    def _wait_for(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
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
        raise ReplicaError(f"`recollect serve` did not start: {lines[-1] if lines else 'it said nothing'}")


@contextlib.contextmanager
def replica(store: Path, flags: list[str] | None = None, **settings: object) -> Iterator[Replica]:
    """A replica on any free port, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        started = Replica(store, Path(folder), 0, flags, **settings)
        try:
            yield started
        finally:
            started.stop()


@contextlib.contextmanager
def two_versions(store: Path) -> Iterator[tuple[Store, list[str]]]:
    """A store of two copies of a store's current version, the first current; gone afterwards.

    The second answers with one label fewer, so that an answer shows which gave it.

    Raises:
        StoreError: If the store has no current version.
        BundleError: If its manifest is broken.
    """
    source = Store(store)
    version = source.require_current()
    manifest = source.manifest(version)
    most = min(manifest.defaults.top_k, manifest.counts.labels)
    names = [f"{version[:60]}-{letter}" for letter in "ab"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Store(Path(folder))
        for name, top_k in zip(names, (most, max(1, most - 1)), strict=True):
            bundle = copy.bundles / name
            shutil.copytree(source.path(version), bundle, ignore=shutil.ignore_patterns(SIGNATURE))
            content = json.loads((bundle / MANIFEST).read_bytes())
            content["version"] = name
            content["defaults"]["top_k"] = top_k
            (bundle / MANIFEST).write_text(json.dumps(content), encoding="utf-8")
        copy.activate(names[0])
        yield copy, names
