"""Starts, watches and ends the trial of the canary in this process.

If the canary cannot be opened, only the canary is refused; the current version is not affected. If a circuit breaker
stops the canary, this replica reports the stop. Every other replica that reads the report stops the same canary too,
also after a restart. An activation command with a later generation starts a new trial.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import structlog

from recollect.service.canary.breaker import BreakerLimits
from recollect.service.canary.trial import Trial
from recollect.service.errors import RedisError
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.activation_record import ActivationRecord
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.replicas import Replicas, reports
from recollect.service.versions.reporter import Reporter
from recollect.service.versions.reports import CanaryReport, CanaryState, replica_name, shorten
from recollect.service.versions.throttle import CancelledWorkError

log = structlog.get_logger(__name__)

# Seconds after which a refused canary is opened again, because the reason may be gone.
_RETRY_SECONDS = 30.0


class CanaryController:
    """The trial of the canary; used by one thread.

    Args:
        versions: The open versions.
        replicas: The registry of replicas.
        reporter: Reports the state of the canary.
        metrics: Records whether the canary is stopped.
        limits: When the canary is stopped.
    """

    def __init__(
        self, versions: OpenVersions, replicas: Replicas, reporter: Reporter, metrics: Metrics, limits: BreakerLimits
    ) -> None:
        self._versions, self._replicas, self._reporter = versions, replicas, reporter
        self._metrics, self._limits = metrics, limits
        self._started: ActivationRecord | None = None  # its canary is open, refused or stopped
        self._retry_at = float("inf")

    def end_unless_desired(self, record: ActivationRecord) -> None:
        """End the trial if the record neither has its canary nor makes it current."""
        trial = self._versions.trial
        desired = {record.version, record.canary.version if record.canary else None}
        if trial is not None and trial.canary.version not in desired:
            self._versions.end_trial()
            log.info("canary_ended", version=trial.canary.version, generation=record.generation)

    def follow(self, record: ActivationRecord, open_canary: Callable[[str], Predictor]) -> None:
        """Bring this process to the canary of the record whose version it serves.

        Args:
            record: The record.
            open_canary: Opens a version beside the current one.
        """
        if record.canary is None:
            self._started = None
            self._versions.end_trial()
            self._reporter.canary(None)
            self._metrics.canary_stopped.set(0)
            return
        if record != self._started or time.monotonic() >= self._retry_at:
            self._start(record, open_canary)
        trial = self._versions.trial
        if trial is not None:
            self._watch(trial)

    def _start(self, record: ActivationRecord, open_canary: Callable[[str], Predictor]) -> None:
        assert record.canary is not None
        trial = Trial(record.canary, record.generation, self._limits)
        self._retry_at = float("inf")
        self._metrics.canary_stopped.set(0)
        if (stop := self._stop_elsewhere(trial)) is not None:
            self._stop(trial, stop)
        elif self._versions.canary is not None:  # only its share changes
            self._versions.start_trial(trial)
            self._report(trial, "open")
        else:
            try:
                self._report(trial, "opening")
                self._versions.start_trial(trial, open_canary(record.canary.version))
                self._report(trial, "open")
                log.info("canary_opened", version=record.canary.version, generation=record.generation)
            except CancelledWorkError:
                return
            except Exception as error:  # any error: the current version stays
                self._refuse(trial, error)
        self._started = record

    def _refuse(self, trial: Trial, error: Exception) -> None:
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        self._report(trial, "failed", str(error) or repr(error))
        log.error("canary_refused", version=trial.canary.version, generation=trial.generation, error=str(error))

    def _watch(self, trial: Trial) -> None:
        """Stop the trial if the circuit breaker of this process or of another replica has opened."""
        if (reason := trial.breaker.stopped) is not None:
            self._stop(trial, self._canary_report(trial, "stopped", reason, replica_name()))
        elif (stop := self._stop_elsewhere(trial)) is not None:
            self._stop(trial, stop)

    def _stop(self, trial: Trial, stop: CanaryReport) -> None:
        trial.breaker.stop(stop.error or "")
        self._versions.end_trial()
        self._reporter.canary(stop)
        self._metrics.canary_stopped.set(1)
        log.error(
            "canary_stopped", version=stop.version, generation=stop.generation, by=stop.stopped_by, reason=stop.error
        )

    def _stop_elsewhere(self, trial: Trial) -> CanaryReport | None:
        """The report of another replica that stopped the same trial."""
        with contextlib.suppress(RedisError):
            for report in reports(self._replicas):
                if (found := report.canary) is not None and found.stops(trial.canary.version, trial.generation):
                    return found
        return None

    def _report(self, trial: Trial, state: CanaryState, error: str | None = None) -> None:
        self._reporter.canary(self._canary_report(trial, state, error))

    def _canary_report(
        self, trial: Trial, state: CanaryState, error: str | None = None, stopped_by: str | None = None
    ) -> CanaryReport:
        return CanaryReport(
            version=trial.canary.version,
            generation=trial.generation,
            state=state,
            error=shorten(error) if error else None,
            stopped_by=stopped_by,
        )
