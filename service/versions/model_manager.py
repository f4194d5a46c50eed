"""The live predictor: follows the current version and swaps versions under load.

A new version is opened, checked and warmed beside the old one, then one reference flips. A request takes the
reference once, so it is answered by one version; the old one goes when its last request has. One thread does all of
that, at leisure. A version that fails is refused, told of, and the old one goes on.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from service.errors import NotReadyError, RedisError, ServiceError
from service.predictor.predictor import Predictor
from service.telemetry.metrics import Telemetry
from service.versions.current import Current
from service.versions.opening import Opener
from service.versions.replicas import REPORT_SECONDS, Refusal, Replicas, Report, replica_name, shortened
from service.versions.throttle import AbandonedError, at_leisure

log = structlog.get_logger(__name__)

# A refused version is tried again after so long: what was wrong may have passed, as a full memory does.
_RETRY_SECONDS = 30.0
# Queries that were asked last, which warm the next version. They are never written anywhere.
_RECORDED = 16
# Without a query for so long, opening a version is in nobody's way.
_ASKED_SECONDS = 1.0
# References to a version that nobody but the list of the retired holds: the list's, and the count's own.
_HELD_BY_NOBODY = 2


class Live:
    """The predictor in use, and the thread that keeps it current.

    Args:
        opener: Opens versions.
        current: Tells which of them to serve.
        replicas: Where to tell what is served.
        telemetry: Told of swaps.
        poll_seconds: Between two looks; `wake` makes the next one come at once.
    """

    def __init__(
        self, opener: Opener, current: Current, replicas: Replicas, telemetry: Telemetry, poll_seconds: float
    ) -> None:
        self._opener, self._current, self._replicas, self._telemetry = opener, current, replicas, telemetry
        self._poll_seconds = poll_seconds
        self._serving: tuple[Predictor, datetime] | None = None
        self._retired: list[Predictor] = []
        self._recorded: deque[str] = deque(maxlen=_RECORDED)
        self._asked_at = -_ASKED_SECONDS
        self._refused: Refusal | None = None
        self._retry_at = 0.0
        self._complaints: dict[str, str] = {}
        self._draining = threading.Event()
        self._closed = False
        self._news = threading.Event()
        self._follower: threading.Thread | None = None

    def open_current(self) -> None:
        """Open the current version.

        Raises:
            StoreError: If nothing is current.
            ServiceError: If the version may not be served, as `Opener.open` says.
        """
        self._open(self._current.require())

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

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    def record(self, query: str) -> None:
        """Remember a query for a while, to warm the next version with."""
        self._recorded.append(query)
        self._asked_at = time.monotonic()

    def follow(self) -> None:
        """Watch for another current version, in a thread of its own, until `close`."""
        context = contextvars.copy_context()  # in which logs name their worker
        self._follower = threading.Thread(target=context.run, args=(self._watch,), name="follow-current", daemon=True)
        self._follower.start()

    def wake(self) -> None:
        """Look now: there is news."""
        self._news.set()

    def drain(self) -> None:
        """Be ready no more, and swap no more; what is asked all the same is answered."""
        self._draining.set()
        self._telemetry.ready.set(0)
        self.wake()

    def close(self) -> None:
        self._draining.set()
        self._closed = True
        self._opener.store.close()
        self.wake()
        if self._follower:
            self._follower.join()
        with contextlib.suppress(OSError):
            self._replicas.leave()

    def _watch(self) -> None:
        look_at = 0.0
        while not self._closed:
            if self._news.is_set() or time.monotonic() >= look_at:
                self._news.clear()
                self._try("store_unreadable", self._refresh)
                look_at = time.monotonic() + self._poll_seconds
            self._try("report_unwritable", self._report)
            self._free_retired()
            self._telemetry.tick()
            self._news.wait(min(self._poll_seconds, REPORT_SECONDS))

    def _try(self, event: str, step: Callable[[], None]) -> None:
        """Take a step; what keeps it from being taken is told once, not at every look."""
        try:
            step()
            self._complaints.pop(event, None)
        except RedisError:  # told by who asked it
            pass
        except Exception as error:  # whatever it is, the next look may be better
            if self._complaints.get(event) != str(error):
                self._complaints[event] = str(error)
                ours = not isinstance(error, ServiceError | OSError)
                log.error(event, error=str(error), serving=self.version(), exc_info=error if ours else None)

    def _refresh(self) -> None:
        current = self._current.version()
        if self.draining:
            return
        if current is None or current == self.version():
            self._refused = None
        elif self._refused is None or self._refused.version != current or time.monotonic() >= self._retry_at:
            try:
                self._open(current)
            except AbandonedError:
                return
            except Exception as error:  # whatever is wrong with it, the old version goes on
                reason = shortened(str(error) or repr(error))
                self._refused = Refusal(version=current, error=reason, at=datetime.now(UTC))
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                self._telemetry.refused()
                log.error("bundle_refused", version=current, error=str(error), serving=self.version())

    def _open(self, version: str) -> None:
        start = time.monotonic()
        with at_leisure(self._asked_of_late, self._draining) if self._serving else contextlib.nullcontext():
            predictor = self._opener.open(version, [*self._recorded])
        before = self.version()
        if self._serving:
            self._retired.append(self._serving[0])
        self._serving = predictor, datetime.now(UTC)
        self._refused = None
        seconds = round(time.monotonic() - start, 3)
        log.info("bundle_swapped" if before else "bundle_opened", version=version, before=before, seconds=seconds)
        if before:
            self._telemetry.swapped(seconds)
        self._telemetry.serves(version, before, predictor.manifest.created)
        self._telemetry.ready.set(not self.draining)

    def _asked_of_late(self) -> bool:
        return time.monotonic() - self._asked_at < _ASKED_SECONDS

    def _free_retired(self) -> None:
        """Let go of versions whose last request has gone: unmapping them costs this thread, and no request."""
        before = len(self._retired)
        for nth in reversed(range(before)):
            if sys.getrefcount(self._retired[nth]) == _HELD_BY_NOBODY:
                del self._retired[nth]
        if len(self._retired) < before:
            _trim()

    def _report(self) -> None:
        if self._serving is not None:
            predictor, since = self._serving
            state = "draining" if self.draining else "serving"
            refused = self._refused
            self._replicas.tell(
                Report(replica=replica_name(), state=state, version=predictor.version, since=since, refused=refused)
            )


def _trim() -> None:
    """Give freed memory back to the system, which the C library would keep for the next version."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
