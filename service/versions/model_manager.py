"""The model manager brings a process to the desired versions, while the current version answers requests.

The desired versions are those of the current activation record of the store. One thread reads it regularly and opens
versions. It also reads the record between the steps of an opening and right before a swap, and abandons an opening of a
version that the record does not name any more. So a version that was rolled back is never served afterwards. The
previous version stays open as the standby while memory permits, so a rollback swaps at once.

A candidate is opened beside the current version. If it becomes current, the swap is at once.

If a version cannot be served, it is refused: the refusal is logged and reported, and the service keeps the current
version. A refused version is tried again later, or at once after a new activation.

Another thread applies the changes of the live memory that other processes make.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Sequence

import structlog

from recollect.core.errors import InsufficientMemoryError, StoreError
from recollect.core.system.background import BackgroundThread
from recollect.edits.live import LivePredictor
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.opening import CancelledWorkError, Opener, Throttle, require_memory
from recollect.service.versions.reports import Reporter, Reports
from recollect.store.activations import ActivationRecord

log = structlog.get_logger(__name__)

# Seconds after which a refused version is tried again, because the reason, such as too little free memory, may be gone.
_RETRY_SECONDS = 30.0
# Maximum seconds between two checks whether retired versions can be closed.
_CLOSE_SECONDS = 1.0
# A change of the live memory is visible in every replica after at most about this time. Without news, a check costs two
# `stat` calls, or one request to the server of the store.
_LOG_SECONDS = 0.5
# A process without requests for so long asks the server of a store less often: such requests cost money.
_IDLE_AFTER_SECONDS, _IDLE_POLL_SECONDS = 60.0, 5.0


class ModelManager:
    """Opens, swaps and closes the versions of a process."""

    def __init__(self, opener: Opener, reports: Reports, metrics: Metrics, poll_seconds: float) -> None:
        self.versions = OpenVersions()
        self._opener, self._metrics = opener, metrics
        self._reporter = Reporter(reports, self.versions)
        self._load: Callable[[], float] = lambda: 0.0
        self._poll_seconds, self._read_at, self._log_read_at = poll_seconds, -math.inf, -math.inf
        self._newest: ActivationRecord | None = None  # the record that was read last
        self._served: ActivationRecord | None = None
        self._refused: ActivationRecord | None = None
        self._retry_at = 0.0
        self._recommended = False  # a compaction

        def thread(name: str, step: Callable[[], None], seconds: float, failed: str) -> BackgroundThread:
            return BackgroundThread(name, step, seconds, failed, lambda: {"serving": self.versions.version()})

        self._follower = thread("follow", self._follow, min(poll_seconds, _CLOSE_SECONDS), "store_unreadable")
        self._log_reader = thread("follow-log", self._read_log, _LOG_SECONDS, "log_unreadable")

    def open_current(self) -> None:
        """Open the current version in the calling thread, at the start of the process. A candidate is opened later.

        Raises:
            ServiceError: If no version is current, or the version may not be served; see `Opener.open`.
        """
        try:
            while self.versions.current is None:
                record = self._read_record()
                if record is None:
                    self._opener.store.require_current()  # raises the error that names the next step
                    continue
                self._reporter.start()
                with contextlib.suppress(CancelledWorkError):  # another version was activated meanwhile
                    self._serve(record, with_candidate=False)
        except BaseException:
            self._reporter.stop()
            raise

    def follow(self, load: Callable[[], float] = lambda: 0.0) -> None:
        """Follow the store in background threads, until `close`.

        `load` gives the share of the computing threads that are busy. The higher it is, the slower a version opens.
        """
        self._load = load
        for thread in (self._follower, self._log_reader):
            thread.start()

    def follow_log(self) -> None:
        """Read the log of the live memory now."""
        self._log_reader.wake()

    def drain(self) -> None:
        """Report "not ready" and stop swapping versions; requests are still answered."""
        self.versions.draining = True
        self._metrics.ready.set(0)
        self._reporter.leave()

    def withdraw(self, seconds: float) -> None:
        """Remove the report of this replica within this time, before the process ends at once.

        Otherwise `activate --wait` would count this replica as killed.
        """
        self._reporter.stop(seconds)

    def close(self) -> None:
        """Stop the background threads, and remove the report of this replica."""
        self.drain()
        for thread in (self._follower, self._log_reader):
            thread.stop()
        self._reporter.stop()

    def _read_record(self) -> ActivationRecord | None:
        self._read_at = time.monotonic()
        record = self._opener.store.activation()
        if record is not None:
            self._newest = record
            self._metrics.generation.labels("store").set(record.generation)
        return record

    @property
    def _is_due(self) -> bool:
        """Whether it is time to read the activation record again."""
        seconds = max(self._poll_seconds, _IDLE_POLL_SECONDS) if self._is_idle else self._poll_seconds
        return time.monotonic() - self._read_at >= 0.9 * seconds  # a wait can be a little shorter

    @property
    def _is_idle(self) -> bool:
        """Whether no request has come for some time, and each look at the store is a request to a server."""
        return not self._opener.store.is_local and time.monotonic() - self.versions.leased_at > _IDLE_AFTER_SECONDS

    def _follow(self) -> None:
        """Bring this process to the desired versions, and close versions that are no longer used."""
        try:
            if self._is_due:
                self._read_record()
            if (record := self._newest) is not None and not self.versions.draining:
                self._end_candidate(record)
                is_refused = record == self._refused and time.monotonic() < self._retry_at
                if record != self._served and not is_refused:
                    self._try_to_serve(record)
        finally:
            self._close_versions()
            self._metrics.refresh()

    def _end_candidate(self, record: ActivationRecord) -> None:
        """Retire the candidate, unless a record names it or is going to make it current."""
        candidate = self.versions.candidate
        if candidate is None:
            return
        version = candidate.predictor.version
        # If the bundle of the candidate was replaced in the store, the current version can have the same name.
        becomes_current = version == record.version and version != self.versions.version()
        if version != record.candidate and not becomes_current:
            self.versions.retire(candidate)
            log.info("candidate_ended", version=version, generation=record.generation)

    def _try_to_serve(self, record: ActivationRecord) -> None:
        try:
            self._serve(record)
        except CancelledWorkError:
            log.info("opening_abandoned", version=record.version, generation=record.generation)
            self._follower.wake()
        except Exception as error:  # any error: the versions in use stay
            serving = self.versions.require_current().predictor.version
            version = record.candidate if serving == record.version else record.version
            self._refused, self._retry_at = record, time.monotonic() + _RETRY_SECONDS
            self._metrics.refused()
            self._reporter.refused(record.generation, str(error) or repr(error))
            log.error("bundle_refused", version=version, error=str(error), serving=serving)

    def _serve(self, record: ActivationRecord, with_candidate: bool = True) -> None:
        """Swap to the current version of a record, then open its candidate."""
        before = self.versions.version()
        if before != record.version:
            start = time.monotonic()
            record = self._swap(record)
            self._record_swap(record, before, time.monotonic() - start)
        if record.candidate is not None:
            if not with_candidate:
                return
            self._open_candidate(record.candidate, record.generation)
        self._served, self._refused = record, None
        self._metrics.generation.labels("served").set(record.generation)
        self._reporter.carried_out(record.generation)

    def _swap(self, record: ActivationRecord) -> ActivationRecord:
        """Make the version of a record current, and return the newest record."""
        version, opened = record.version, self._find_open(record.version)
        predictor = opened or self._open(version)
        try:
            record = self._require_desired(version)
            if record.version != version:
                raise CancelledWorkError
            _catch_up(predictor)
        except BaseException:
            if opened is None:
                predictor.close()
            raise
        self.versions.make_current(predictor)
        return record

    def _open_candidate(self, version: str, generation: int) -> None:
        """Open the candidate beside the current version, unless it is open."""
        candidate = self.versions.candidate
        if candidate is not None and candidate.predictor.version == version:
            return
        opened = self._find_open(version)
        predictor = opened or self._open(version)
        try:
            self._require_desired(version)
        except CancelledWorkError:
            if opened is None:
                predictor.close()
            raise
        self.versions.add_candidate(predictor)
        log.info("candidate_opened", version=version, generation=generation)

    def _find_open(self, version: str) -> LivePredictor | None:
        """The candidate or the standby, if it is this version and the present public keys accept its signature."""
        for opened in filter(None, (self.versions.candidate, self.versions.standby)):
            if opened.predictor.version == version and self._opener.store.accepts(opened.predictor.bundle):
                return opened.predictor
        return None

    def _open(self, version: str) -> LivePredictor:
        """Open a version. If the free memory does not suffice, close the standby first."""
        if self._opener.device != "cpu":  # the memory check does not know the memory of the GPU
            self._close_standby()
        throttle = Throttle(self._load, lambda: self._check(version)) if self.versions.current else None

        def open_version() -> LivePredictor:
            share_with = self.versions.open_predictors()
            return self._opener.open(version, throttle, share_with)

        try:
            return open_version()
        except InsufficientMemoryError:
            if not self._close_standby():
                raise
            return open_version()

    def _check(self, version: str) -> None:
        """Abandon the opening of a version, with a CancelledWorkError, if the record does not name it any more."""
        if self.versions.draining or self._is_due:
            self._require_desired(version)

    def _require_desired(self, version: str) -> ActivationRecord:
        """Read the activation record again, and return it, or raise `CancelledWorkError` if the version is not in it.

        If the store cannot be read, the record that was read last counts.
        """
        with contextlib.suppress(StoreError, OSError):
            self._read_record()
        if self.versions.draining or self._newest is None or version not in self._newest.to_open:
            raise CancelledWorkError
        return self._newest

    def _record_swap(self, record: ActivationRecord, before: str | None, seconds: float) -> None:
        current = self.versions.require_current()
        event = "bundle_swapped" if before else "bundle_opened"
        log.info(event, version=record.version, before=before, generation=record.generation, seconds=round(seconds, 3))
        if before:
            self._metrics.swapped(seconds)
        self._metrics.set_version(record.version, before, current.predictor.manifest.created)
        self._metrics.ready.set(not self.versions.draining)

    def _close_versions(self) -> None:
        """Close the retired versions without leases, and the standby if memory is short."""
        standby = self.versions.standby
        if standby is not None:
            try:
                require_memory(standby.predictor.manifest, self._opener.workers)
            except InsufficientMemoryError:
                self._close_standby()
                log.info("standby_closed", version=standby.predictor.version)
        self._close_unused()

    def _close_standby(self) -> bool:
        """Close the standby if no request uses it; return whether there was one."""
        if (standby := self.versions.standby) is not None:
            self.versions.retire(standby)
        self._close_unused()
        return standby is not None

    def _close_unused(self) -> None:
        closed = self.versions.close_unused()
        for version in set(closed).difference(self.versions.names()):
            self._metrics.forget_version(version)
        if closed:
            with contextlib.suppress(OSError, AttributeError):  # return freed memory, which glibc would keep
                ctypes.CDLL(None).malloc_trim(0)

    def _read_log(self) -> None:
        """Apply the changes of other processes to all open versions."""
        if self._is_idle and time.monotonic() - self._log_read_at < _IDLE_POLL_SECONDS:
            return
        self._log_read_at = time.monotonic()
        with contextlib.ExitStack() as stack:
            predictors = [stack.enter_context(lease) for lease in self.versions.lease_open()]
            failures = _catch_up_all(predictors)
            self._record_memory(predictors[0])
        if failures:
            raise failures[0]

    def _record_memory(self, current: LivePredictor) -> None:
        """Set the metrics of the current memory, and recommend a compaction once."""
        memory = current.memory
        self._metrics.memory_sequence.set(memory.sequence)
        self._metrics.memory_live_keys.set(memory.snapshot.live_keys)
        self._metrics.memory_live_bytes.set(memory.snapshot.live_bytes)
        if (pays := memory.snapshot.compaction_pays) and not self._recommended:
            log.warning(
                "compaction_recommended",
                version=current.version,
                live_keys=memory.snapshot.live_keys,
                run="recollect compact STORE --activate",
            )
        self._recommended = pays


def _catch_up_all(predictors: Sequence[LivePredictor]) -> list[Exception]:
    """Apply the newest changes of the live memory to versions of one store, and return the failures.

    A version that cannot read the log does not keep the others from reading it. One version asks for the end of the
    log, and those that are there already do not ask again.
    """
    failures: list[Exception] = []
    end: int | None = None
    for predictor in predictors:
        try:
            if predictor.memory.sequence != end:
                predictor.catch_up()
                end = predictor.memory.sequence
        except Exception as error:
            failures.append(error)
    return failures


def _catch_up(predictor: LivePredictor) -> None:
    """Apply the newest changes of the live memory, so that the swap hides none of them.

    If the log cannot be read, the swap does not wait for it: a rollback must work then, too.
    """
    try:
        predictor.catch_up()
    except (StoreError, OSError) as error:
        log.error("log_unreadable", version=predictor.version, error=str(error))
