"""A connection to Milvus: calls have a time limit, lost calls are repeated, and a circuit breaker limits the waiting.

The breaker opens after a call that fails although it was repeated, and after several calls in a row that take too long.
Further calls then fail at once. A thread asks Milvus every second. The breaker closes when Milvus answers.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import structlog

from service.errors import EngineError, SettingsError
from service.settings import EngineSettings

log = structlog.get_logger(__name__)

# Waits before a call is repeated after the connection was lost.
_RETRY_SECONDS = (0.05, 0.2, 0.5)
# Number of calls in a row that take too long before the breaker opens.
_SLOW_CALLS = 3
_PROBE_SECONDS = 1.0
# Loading a large collection takes longer than a call of a query.
_LOAD_SECONDS = 600.0
# The oldest release of Milvus that has all calls and filters that are used.
_LEAST_VERSION = (2, 4)


class Connection:
    """A connection to Milvus; thread-safe.

    Attributes:
        name: The address, without credentials, for messages.
        problem: The reason why calls fail at once; None while the breaker is closed.

    Raises:
        SettingsError: If no URI is given, or pymilvus is not installed.
        EngineError: If Milvus does not answer.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if settings.engine_uri is None:
            raise SettingsError(
                "--engine-uri: required for a version whose keys are in Milvus; set it or RECOLLECT_ENGINE_URI"
            )
        if importlib.util.find_spec("pymilvus") is None:
            raise SettingsError("--engine-uri: needs pymilvus, which is not installed; pip install 'recollect[milvus]'")
        self.name = _public_name(settings.engine_uri.get_secret_value())
        self.problem: str | None = None
        self._seconds, self._slow, self._lock = settings.engine_seconds, 0, threading.Lock()
        self._closed = threading.Event()
        from service.milvus.client import CALL_ERRORS, open_client, reason

        try:
            self._client = open_client(settings)
        except (*CALL_ERRORS, OSError, ValueError) as error:
            advice = "check --engine-uri, --engine-token and --engine-ca"
            if self.name.endswith(".db"):
                advice = "a file .db can be open in one process only, so several processes need milvus-lite server"
            raise EngineError(f"{self.name}: expected Milvus to answer, found: {reason(error)}; {advice}") from None
        self._require_version()

    def call(self, method: str, collection: str, seconds: float | None = None, **options: Any) -> Any:
        """Call a method of pymilvus's client for a collection. A collection that is not loaded is loaded first.

        Args:
            method: Name of the method.
            collection: Name of the collection.
            seconds: Time limit of the call; None means that of the settings.
            options: Further arguments of the method.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        from service.milvus.client import is_not_loaded

        try:
            return self._call_client(method, collection, seconds=seconds, **options)
        except _RefusedError as refused:
            if not is_not_loaded(refused.error):
                raise
        self._call_client("load_collection", collection, seconds=_LOAD_SECONDS)
        return self._call_client(method, collection, seconds=seconds, **options)

    def collections(self) -> list[str]:
        """The names of all collections."""
        found: list[str] = self._call_client("list_collections")
        return found

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    def _require_version(self) -> None:
        version = str(self._call_client("get_server_version"))
        found = re.match(r"v?(\d+)\.(\d+)", version)
        if found is not None and (int(found[1]), int(found[2])) < _LEAST_VERSION:
            self.close()
            raise EngineError(
                f"{self.name}: expected Milvus {'.'.join(map(str, _LEAST_VERSION))} or later, found {version}; "
                "upgrade the server"
            )

    def _call_client(self, method: str, *arguments: Any, seconds: float | None = None, **options: Any) -> Any:
        """Call a method of pymilvus's client."""
        function = functools.partial(getattr(self._client, method), *arguments, timeout=seconds or self._seconds)
        return self.guard(functools.partial(function, **options), " of ".join([method, *map(str, arguments)]))

    def guard(self, function: Callable[[], Any], called: str = "a query") -> Any:
        """Call a function that calls Milvus; call it again if the connection was lost.

        Args:
            function: The function.
            called: Description of the call, for error messages.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        from service.milvus.client import CALL_ERRORS, is_unreachable

        for wait in (*_RETRY_SECONDS, None):
            if self.problem is not None:
                raise EngineError(self.problem)
            try:
                found = function()
            except CALL_ERRORS as error:
                if wait is None or not is_unreachable(error) or self._closed.wait(wait):
                    raise self._failed(error, called) from None
            else:
                self._slow = 0
                return found
        raise AssertionError("the last attempt returns or raises")

    def _failed(self, error: Exception, called: str) -> EngineError:
        """Count a failure, and return the error that a caller gets."""
        from service.milvus.client import is_out_of_time, is_unreachable, reason

        if is_unreachable(error):
            return EngineError(self._open_breaker(f"{self.name}: Milvus does not answer; try again shortly"))
        if not is_out_of_time(error):
            return _RefusedError(f"{self.name}: expected Milvus to accept {called}, found: {reason(error)}", error)
        with self._lock:
            self._slow += 1
        message = f"{self.name}: {called} took longer than {self._seconds:g} s (--engine-seconds); try again shortly"
        return EngineError(self._open_breaker(message) if self._slow >= _SLOW_CALLS else message)

    def _open_breaker(self, problem: str) -> str:
        with self._lock:
            if self.problem is None and not self._closed.is_set():
                self.problem = problem
                log.warning("engine_down", why=problem)
                threading.Thread(target=self._probe, name="engine-probe", daemon=True).start()
        return problem

    def _probe(self) -> None:
        """Ask Milvus every second, until it answers."""
        from service.milvus.client import CALL_ERRORS

        since = time.monotonic()
        while not self._closed.wait(_PROBE_SECONDS):
            try:
                self._client.list_collections(timeout=self._seconds)
            except (*CALL_ERRORS, ValueError):
                continue
            with self._lock:
                self._slow, self.problem = 0, None
            log.info("engine_up", engine=self.name, seconds=round(time.monotonic() - since, 1))
            return


class _RefusedError(EngineError):
    """Milvus answered with an error."""

    def __init__(self, message: str, error: Exception) -> None:
        super().__init__(message)
        self.error = error


def _public_name(uri: str) -> str:
    if uri.endswith(".db"):
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
