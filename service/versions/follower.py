"""Brings a process to the desired version, while the current version answers requests.

One thread reads the desired version regularly. Another thread opens versions. If the desired version changes while a
version opens, the opening is abandoned. The desired version is read again right before the swap, so a version that was
rolled back is never served afterwards. The previous version stays open as the standby while memory permits, so a
rollback swaps at once.

If a version cannot be served, it is refused: the refusal is logged and reported, and the service keeps the current
version. A refused version is tried again later, or at once after a new activation.

A canary is opened beside the current version, in the same way. If it becomes the desired version, the swap is at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator

import structlog

from recollect.service.errors import InsufficientMemoryError, StoreError
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.activation_record import ActivationRecord
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.announcements import Announcements
from recollect.service.versions.background import BackgroundThread
from recollect.service.versions.canary import CanaryController
from recollect.service.versions.desired_version import DesiredVersion
from recollect.service.versions.memory_check import require_memory
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.opening import Opener
from recollect.service.versions.reporter import Reporter
from recollect.service.versions.throttle import CancelledWorkError, Throttle

log = structlog.get_logger(__name__)

# Seconds after which a refused version is tried again, because the reason, such as too little free memory, may be gone.
_RETRY_SECONDS = 30.0
# Seconds between two checks whether retired versions can be closed.
_CLOSE_SECONDS = 1.0


class Follower:
    """Opens and swaps versions.

    Args:
        opener: Opens versions.
        desired: Reads the desired version.
        versions: The open versions.
        reporter: Reports the state of this replica.
        metrics: Records the swaps.
        announcements: The generation that Redis announces, or None.
        poll_seconds: Seconds between two checks of `desired`.
        canary: Runs the trial of the canary.
    """

    def __init__(
        self,
        opener: Opener,
        desired: DesiredVersion,
        versions: OpenVersions,
        reporter: Reporter,
        metrics: Metrics,
        announcements: Announcements | None,
        poll_seconds: float,
        canary: CanaryController,
    ) -> None:
        self._canary = canary
        self._opener, self._desired, self._versions, self._reporter = opener, desired, versions, reporter
        self._metrics, self._announcements = metrics, announcements
        self._load: Callable[[], float] = lambda: 0.0
        self._lock = threading.Lock()
        self._target: ActivationRecord | None = None
        self._served: ActivationRecord | None = None
        self._refused: ActivationRecord | None = None
        self._retry_at = 0.0
        self._opening: str | None = None  # the version that opens at the moment
        self._cancelled = threading.Event()
        self._draining = False
        self._reader = BackgroundThread(
            "follow-read",
            self._read_desired,
            poll_seconds,
            "store_unreadable",
            lambda: {"serving": versions.version()},
        )
        self._swapper = BackgroundThread("follow-swap", self._follow, _CLOSE_SECONDS, "swap_failed")

    def open_first(self) -> None:
        """Open the desired version in the calling thread, at the start of the process.

        Raises:
            StoreError: If no version is current.
            ServiceError: If the version may not be served; see `Opener.open`.
        """
        while self._served is None:
            record = self._desired.require()
            self._set_target(record)
            self._reporter.start()
            with contextlib.suppress(CancelledWorkError):  # another version was activated meanwhile
                self._serve(record)

    def start(self, load: Callable[[], float]) -> None:
        """Follow the desired version until `stop`; `load` is the share of the computing threads that are busy."""
        self._load = load
        self._reader.start()
        self._swapper.start()

    def wake(self) -> None:
        """Read the desired version now."""
        self._reader.wake()

    def drain(self) -> None:
        """Abandon an opening, and start no other."""
        with self._lock:
            self._draining = True
            self._cancelled.set()

    def stop(self) -> None:
        self.drain()
        self._opener.store.close()
        self._reader.stop()
        self._swapper.stop()

    def _read_desired(self) -> None:
        record = self._desired.read()
        if record is None:
            return
        self._set_target(record)
        if self._announcements is not None:
            self._announcements.compare(record.generation, self._metrics)

    def _set_target(self, record: ActivationRecord) -> None:
        """Set the desired version. If another version opens at the moment, its opening is abandoned."""
        self._metrics.generation.labels("store").set(record.generation)
        with self._lock:
            if record == self._target:
                return
            self._target = record
            if self._opening is not None and not _names(record, self._opening):
                self._cancelled.set()
        self._swapper.wake()

    def _follow(self) -> None:
        """Bring this process to the desired version, and close versions that are no longer used."""
        target = self._target
        if target is not None and not self._draining:
            self._canary.end_unless_desired(target)
            is_refused = target == self._refused and time.monotonic() < self._retry_at
            if target != self._served and not is_refused:
                self._try_to_serve(target)
            if self._served is not None and self._served == self._target:
                self._canary.follow(self._served, self._open_canary)
        self._close_versions()
        self._metrics.refresh()

    def _try_to_serve(self, record: ActivationRecord) -> None:
        try:
            self._serve(record)
        except CancelledWorkError:
            log.info("opening_abandoned", version=record.version, generation=record.generation)
            if self._served is not None:
                self._reporter.serving(self._served)
        except Exception as error:  # any error: the version in use stays
            self._refused, self._retry_at = record, time.monotonic() + _RETRY_SECONDS
            self._metrics.refused()
            self._reporter.failed(record, str(error) or repr(error))
            serving = self._versions.require_current().predictor.version
            log.error("bundle_refused", version=record.version, error=str(error), serving=serving)

    def _serve(self, record: ActivationRecord) -> None:
        """Swap to the version of a record.

        Raises:
            CancelledWorkError: If another version was activated meanwhile, or the process drains.
            ServiceError: If the version may not be served.
        """
        with self._abandonable(record.version):
            before = self._versions.current
            if before is None or before.predictor.version != record.version:
                self._reporter.opening(record)
                start = time.monotonic()
                record = self._swap(record)
                self._record_swap(record, before.predictor.version if before else None, time.monotonic() - start)
            self._served, self._refused = record, None
            self._reporter.serving(record)

    def _swap(self, record: ActivationRecord) -> ActivationRecord:
        """Make the version of a record current, and return the newest record. The canary and the standby are open."""
        for opened, make_current in (
            (self._versions.canary, self._versions.promote),
            (self._versions.standby, self._versions.exchange_with_standby),
        ):
            if opened is not None and self._may_serve(opened.predictor, record.version):
                record = self._require_still_desired(record)
                _catch_up(opened.predictor)
                make_current()
                return record
        predictor = self._open(record.version)
        try:
            record = self._require_still_desired(record)
            _catch_up(predictor)
        except BaseException:
            predictor.close()
            raise
        self._versions.replace(predictor)
        return record

    def _open_canary(self, version: str) -> Predictor:
        """Open a version beside the current one.

        Raises:
            CancelledWorkError: If the canary was removed meanwhile, or the process drains.
            ServiceError: If the version may not be served.
        """
        with self._abandonable(version):
            predictor = self._open(version)
            if self._cancelled.is_set():
                predictor.close()
                raise CancelledWorkError
            return predictor

    @contextlib.contextmanager
    def _abandonable(self, version: str) -> Iterator[None]:
        """Abandon the opening of a version, with a CancelledWorkError, if the desired record does not name it."""
        with self._lock:
            if self._draining or self._target is None or not _names(self._target, version):
                raise CancelledWorkError
            self._opening, self._cancelled = version, threading.Event()
        try:
            yield
        finally:
            with self._lock:
                self._opening = None

    def _may_serve(self, opened: Predictor, version: str) -> bool:
        """Whether a predictor is of a version whose signature is still accepted: the public keys may have changed."""
        return opened.version == version and self._opener.store.accepts(opened.bundle)

    def _open(self, version: str) -> Predictor:
        """Open a version. If the free memory does not suffice, close the standby first."""
        if self._opener.device != "cpu":  # the memory check does not know the memory of the GPU
            self._versions.retire_standby()
            self._close_unused()
        throttle = Throttle(self._load, self._cancelled) if self._versions.current else None

        def open_version() -> Predictor:
            share_with = self._versions.open_predictors()
            return self._opener.open(version, throttle, share_with)

        try:
            return open_version()
        except InsufficientMemoryError:
            if not self._versions.retire_standby():
                raise
            self._close_unused()
            return open_version()

    def _require_still_desired(self, record: ActivationRecord) -> ActivationRecord:
        """Read the desired version again. Return the newest record if it names the same version.

        If the store cannot be read, the record that was read last counts.

        Raises:
            CancelledWorkError: If the record names another version, or the process drains.
        """
        with contextlib.suppress(StoreError, OSError):
            if (latest := self._desired.read()) is not None:
                self._set_target(latest)
        with self._lock:
            latest = self._target
            if latest is None or latest.version != record.version or self._draining:
                raise CancelledWorkError
            return latest

    def _record_swap(self, record: ActivationRecord, before: str | None, seconds: float) -> None:
        current = self._versions.require_current()
        event = "bundle_swapped" if before else "bundle_opened"
        log.info(event, version=record.version, before=before, generation=record.generation, seconds=round(seconds, 3))
        if before:
            self._metrics.swapped(seconds)
        self._metrics.set_version(record.version, before, current.predictor.manifest.created)
        self._metrics.ready.set(not self._draining)

    def _close_versions(self) -> None:
        """Close the retired versions without leases, and the standby if memory is short."""
        standby = self._versions.standby
        if standby is not None:
            try:
                require_memory(standby.predictor.manifest, self._opener.workers)
            except InsufficientMemoryError:
                self._versions.retire_standby()
                log.info("standby_closed", version=standby.predictor.version)
        self._close_unused()

    def _close_unused(self) -> None:
        if self._versions.close_unused():
            _return_freed_memory()


def _names(record: ActivationRecord, version: str) -> bool:
    """Whether a record makes a version current, or tries it as a canary."""
    return version == record.version or (record.canary is not None and version == record.canary.version)


def _catch_up(predictor: Predictor) -> None:
    """Apply the newest changes of the live memory, so that the swap hides none of them.

    If the log cannot be read, the swap does not wait for it: a rollback must work then, too.
    """
    try:
        predictor.catch_up()
    except (StoreError, OSError) as error:
        log.error("log_unreadable", version=predictor.version, error=str(error))


def _return_freed_memory() -> None:
    """Return freed memory to the operating system; glibc would keep it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
