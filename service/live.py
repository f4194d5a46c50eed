"""The live predictor: follows the store's CURRENT and swaps versions under load.

A new version is opened, checked and warmed beside the old one, then one reference flips. A request takes the
reference once, so it is answered by one version; the old one goes when its last request does. A version that fails
is refused, logged, and the old one goes on.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import structlog

from service.errors import NotReadyError, StoreError
from service.predictor import Predictor
from service.settings import Device
from service.store import Store

log = structlog.get_logger(__name__)

# A refused version is tried again after so long: what was wrong may have passed, as a full memory does.
_RETRY_SECONDS = 30.0


class Live:
    """The predictor in use, and the thread that keeps it current."""

    def __init__(self, store: Store, threads: int, poll_seconds: float, device: Device = "cpu") -> None:
        self._store = store
        self._threads = threads
        self._device = device
        self._poll_seconds = poll_seconds
        self._serving: tuple[Predictor, datetime] | None = None
        self._refused: str | None = None
        self._retry_at = 0.0
        self._complaint: str | None = None
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None

    def open_current(self) -> None:
        """Open the current version.

        Raises:
            StoreError: If nothing is current.
            BundleError: If the version is broken, or not signed as the store wants it.
        """
        self._open(self._store.require_current())

    def predictor(self) -> Predictor:
        """The predictor in use.

        Raises:
            NotReadyError: If none is yet.
        """
        return self.serving()[0]

    def serving(self) -> tuple[Predictor, datetime]:
        """The predictor in use, and since when.

        Raises:
            NotReadyError: If none is yet.
        """
        if self._serving is None:
            raise NotReadyError("no bundle is loaded yet; try again shortly")
        return self._serving

    def version(self) -> str | None:
        return self._serving[0].version if self._serving else None

    def follow(self) -> None:
        """Watch the store in a thread of its own until `close`."""
        self._follower = threading.Thread(target=self._watch, name="follow-current", daemon=True)
        self._follower.start()

    def close(self) -> None:
        self._stop.set()
        self._store.close()
        if self._follower:
            self._follower.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            try:
                self._refresh()
                self._complaint = None
            except (StoreError, OSError) as error:
                if self._complaint != str(error):  # once, not at every poll
                    self._complaint = str(error)
                    log.error("store_unreadable", error=str(error), serving=self.version())

    def _refresh(self) -> None:
        current = self._store.current()
        if current is None or current == self.version():
            self._refused = None
        elif self._refused != current or time.monotonic() >= self._retry_at:
            try:
                self._open(current)
            except Exception as error:  # whatever is wrong with it, the old version goes on
                self._refused, self._retry_at = current, time.monotonic() + _RETRY_SECONDS
                log.error("bundle_refused", version=current, error=str(error), serving=self.version())

    def _open(self, version: str) -> None:
        start = time.monotonic()
        predictor = Predictor.open(self._store.open(version), self._threads, self._device)
        for why in predictor.on_cpu if self._device == "cuda" else []:
            log.warning("on_cpu", version=version, why=why)
        before, self._serving = self.version(), (predictor, datetime.now(UTC))
        self._refused = None
        seconds = round(time.monotonic() - start, 3)
        log.info("bundle_swapped" if before else "bundle_opened", version=version, before=before, seconds=seconds)
