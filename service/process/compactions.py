"""Runs `recollect compact` when the live memory of the current version has many keys.

The compaction is a process of its own with the lowest priority, because it needs the packages of the builder and much
memory. If the system lacks memory, it ends this process first. The lease of the store lets only one replica compact.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from recollect.service.errors import SettingsError
from recollect.service.serve_settings import ServeSettings
from recollect.service.settings import ENV_PREFIX, SHARED_METRICS
from recollect.service.store.compaction_lease import compaction_holder
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.background import BackgroundThread
from recollect.service.versions.open_versions import OpenVersions

log = structlog.get_logger(__name__)

# Packages that `recollect compact` needs, in addition to those of the service.
_PACKAGES = ("index_builder", "trainer", "torch", "transformers", "onnx", "scipy", "tqdm")
# Time between two checks of the memory, or of the compaction in progress.
_CHECK_SECONDS = 1.0
# Pause after a failure. It doubles with each further failure.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 60.0, 3_600.0
# Time in which a compaction removes its files when the service stops; then it is killed.
_STOP_SECONDS = 3.0
# Other users of the machine can read the arguments of a process, and the URL of a store may contain a password.
_PROGRAM = 'import os, sys, recollect; sys.exit(recollect.main(["compact", os.environ["RECOLLECT_STORE"]]))'
_LOWEST_PRIORITY, _FIRST_TO_KILL = 19, "1000"


class _Compaction(NamedTuple):
    """A compaction in progress.

    Attributes:
        process: Its process.
        folder: The folder of its temporary files and of its output.
        started: Time of its start.
        generation: Generation of the store before.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    started: float
    generation: int

    def last_line(self, name: str) -> str:
        """The last line of its standard output or standard error."""
        lines = (self.folder / name).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.rpartition("\r")[2] for line in reversed(lines) if line.strip()), "")


def require_builder() -> None:
    """Check that the packages of the builder are installed. This does not import them.

    Raises:
        SettingsError: If one of them is missing.
    """
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise SettingsError(
                f"--compact-at: needs {name}; pip install 'recollect-xmc[build]', or run `recollect compact` "
                "on another machine"
            )


@contextlib.contextmanager
def compacting(settings: ServeSettings, store: Store, versions: OpenVersions, metrics: Metrics) -> Iterator[None]:
    """Compact the live memory when it has --compact-at keys, until the end of this context."""
    if settings.compact_at is None:
        yield
        return
    compactions = _Compactions(settings, settings.compact_at, store, versions, metrics)
    thread = BackgroundThread("compact", compactions.step, _CHECK_SECONDS, "compaction_undecided")
    thread.start()
    try:
        yield
    finally:
        thread.stop()
        compactions.stop()


class _Compactions:
    """Starts a compaction when it is due, and reports its result. One thread uses this object.

    Args:
        settings: The settings of the service.
        keys: Number of live keys, without those that a compaction keeps live, from which on a compaction is due.
        store: The store.
        versions: The open versions.
        metrics: Counts the results.
    """

    def __init__(
        self, settings: ServeSettings, keys: int, store: Store, versions: OpenVersions, metrics: Metrics
    ) -> None:
        self._settings, self._keys, self._store, self._versions, self._metrics = (
            settings,
            keys,
            store,
            versions,
            metrics,
        )
        self._running: _Compaction | None = None
        self._pause, self._not_before = _MIN_PAUSE_SECONDS, 0.0

    def step(self) -> None:
        """Start a compaction if one is due; report the compaction in progress if it has ended.

        Raises:
            StoreError, OSError: If the store cannot be read.
        """
        if self._running is not None:
            if self._running.process.poll() is not None:
                self._report(self._running)
        elif time.monotonic() >= self._not_before and (generation := self._due()) is not None:
            self._start(generation)

    def stop(self) -> None:
        """Stop the compaction in progress. It has no effect on the store, and the next service starts it again."""
        if self._running is None:
            return
        process = self._running.process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.info("compaction_stopped")
        self._forget(self._running)

    def _due(self) -> int | None:
        """The generation of the store if its current version has enough keys, and no other process compacts."""
        with self._versions.lease() as predictor:
            version, view = predictor.version, predictor.memory.view
        if view is None or view.status.live_keys - view.status.kept_keys < self._keys:
            return None
        record = self._store.activation()
        # After an activation, this process serves the old version for a short time. An activation would end a trial.
        if record is None or record.version != version or record.canary is not None:
            return None
        return record.generation if compaction_holder(self._store.files) is None else None

    def _start(self, generation: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="recollect-compact-"))
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM],  # -P: never import from the working directory
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self._environment(folder),
                start_new_session=True,  # Ctrl-C in a terminal reaches this process alone
            )
        self._running = _Compaction(process, folder, time.monotonic(), generation)
        with contextlib.suppress(OSError):  # the process has ended, or the system has no such file
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(_FIRST_TO_KILL, encoding="ascii")
        log.info("compaction_started", process=process.pid)

    def _environment(self, folder: Path) -> dict[str, str]:
        """The environment variables of the compaction, with its settings."""
        given = self._settings
        settings = {
            "store": given.store,
            "verify_key": given.verify_key,
            "bundle_cache": given.bundle_cache,
            "sign": given.sign,
            "activate": "true",
            "threads": 1,
            "device": "cpu",
        }
        variables = {name: value for name, value in os.environ.items() if name != SHARED_METRICS}
        sources = filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))
        own = {f"{ENV_PREFIX}{name}".upper(): str(value) for name, value in settings.items() if value is not None}
        return {**variables, **own, "PYTHONPATH": os.pathsep.join(sources), "TMPDIR": str(folder)}

    def _report(self, compaction: _Compaction) -> None:
        seconds = round(time.monotonic() - compaction.started, 1)
        status = compaction.process.returncode
        error = compaction.last_line("stderr") or f"exit status {status}"
        if status == 0:
            self._pause = _MIN_PAUSE_SECONDS
            self._metrics.compactions.labels("published").inc()
            log.info("compaction_published", version=compaction.last_line("stdout"), seconds=seconds)
        elif status > 0 and self._is_superseded(compaction):  # a killed compaction leaves its own lease behind
            log.info("compaction_superseded", error=error, seconds=seconds)
        else:
            self._not_before = time.monotonic() + self._pause
            self._metrics.compactions.labels("failed").inc()
            log.error("compaction_failed", error=error, status=status, seconds=seconds, again_in_seconds=self._pause)
            self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)
        self._forget(compaction)

    def _is_superseded(self, compaction: _Compaction) -> bool:
        """Whether another replica compacts, or there was an activation meanwhile."""
        record = self._store.activation()
        is_same = record is not None and record.generation == compaction.generation
        return not is_same or compaction_holder(self._store.files) is not None

    def _forget(self, compaction: _Compaction) -> None:
        shutil.rmtree(compaction.folder, ignore_errors=True)
        self._running = None
