"""A background thread that runs one step regularly. An error of the step does not end the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from recollect.core.errors import RedisError, ServiceError

log = structlog.get_logger(__name__)


class BackgroundThread:
    """Runs a step regularly, and at once after `wake`.

    Args:
        step: The step. If it fails with the same error several times in a row, the error is logged only once.
        failed: Name of the log event of an error.
        facts: Function that returns further fields of this event.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], None],
        seconds: float,
        failed: str,
        facts: Callable[[], dict[str, object]] = dict,
    ) -> None:
        self._name, self._step, self._seconds, self._failed, self._facts = name, step, seconds, failed, facts
        self._logged: str | None = None
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Run the step now, or once more if it runs at the moment."""
        self._wake.set()

    def stop(self, seconds: float | None = None) -> bool:
        """Stop the thread after the step in progress; wait at most so many seconds. Return whether it has ended."""
        self._stopped.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                self._step()
                self._logged = None
            except RedisError:  # the Redis client has logged it
                pass
            except Exception as error:  # the next step may succeed
                if self._logged != str(error):
                    self._logged = str(error)
                    is_bug = not isinstance(error, ServiceError | OSError)
                    log.error(self._failed, error=str(error), exc_info=error if is_bug else None, **self._facts())
            self._wake.wait(self._seconds)
