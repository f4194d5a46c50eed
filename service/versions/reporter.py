"""Reports the state of this replica regularly, in a thread of its own: reports continue while a version opens."""

from __future__ import annotations

import contextlib
import threading
from datetime import UTC, datetime
from typing import get_args

from recollect.service.store.activation_record import ActivationRecord
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.background import BackgroundThread
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.replicas import REPORT_SECONDS, Replicas
from recollect.service.versions.reports import CanaryReport, Refusal, Report, State, replica_name, shorten


class Reporter:
    """The state of this replica. Every change is reported at once.

    Args:
        replicas: The registry of replicas.
        versions: The open versions of this process.
        metrics: Records the state and the generation.
    """

    def __init__(self, replicas: Replicas, versions: OpenVersions, metrics: Metrics) -> None:
        self._replicas, self._versions, self._metrics = replicas, versions, metrics
        self._lock = threading.Lock()
        self._state: State = "opening"
        self._generation: int | None = None
        self._refused: Refusal | None = None
        self._canary: CanaryReport | None = None
        self._draining = False
        self._thread = BackgroundThread("follow-report", self._report, REPORT_SECONDS, "report_unwritable")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting, and remove this replica from the registry."""
        self._thread.stop()
        with contextlib.suppress(OSError):
            self._replicas.leave()

    def withdraw(self, seconds: float) -> None:
        """As `stop`, but wait at most this time, because the process ends at once."""
        stopping = threading.Thread(target=self.stop, name="follow-withdraw", daemon=True)
        stopping.start()
        stopping.join(seconds)

    def opening(self, record: ActivationRecord) -> None:
        self._change("opening", record.generation)

    def serving(self, record: ActivationRecord) -> None:
        self._metrics.generation.labels("served").set(record.generation)
        self._change("serving", record.generation)

    def failed(self, record: ActivationRecord, error: str) -> None:
        refused = Refusal(version=record.version, error=shorten(error), at=datetime.now(UTC))
        self._change("failed", record.generation, refused)

    def canary(self, report: CanaryReport | None) -> None:
        with self._lock:
            if report == self._canary:
                return
            self._canary = report
        self._thread.wake()

    def draining(self) -> None:
        with self._lock:
            self._draining = True
        self._change(self._state, self._generation, self._refused)

    def _change(self, state: State, generation: int | None, refused: Refusal | None = None) -> None:
        with self._lock:
            self._state, self._generation, self._refused = state, generation, refused
            shown: State = "draining" if self._draining else state
            for each in get_args(State):
                self._metrics.replica_state.labels(each).set(each == shown)
        self._thread.wake()

    def _report(self) -> None:
        with self._lock:
            state: State = "draining" if self._draining else self._state
            generation, refused, current = self._generation, self._refused, self._versions.current
            canary = self._canary
        self._replicas.report(
            Report(
                replica=replica_name(),
                state=state,
                version=current.predictor.version if current else None,
                generation=generation,
                since=current.since if current else None,
                refused=refused,
                canary=canary,
            )
        )
