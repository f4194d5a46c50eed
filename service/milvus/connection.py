"""A connection to Milvus: calls have a time limit, lost calls are repeated, and a circuit breaker limits waiting."""

from __future__ import annotations

import functools
import importlib.util
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from recollect.service.errors import EngineError, SettingsError
from recollect.service.milvus.breaker import Breaker, Failure
from recollect.service.settings import EngineSettings

# Waits before a call is repeated after the connection was lost.
_RETRY_SECONDS = (0.05, 0.2, 0.5)
# Loading a large collection takes longer than a call of a query.
_LOAD_SECONDS = 600.0
# The oldest release of Milvus that has all calls and filters that are used.
_LEAST_VERSION = (2, 4)


class CallObserver(Protocol):
    """Gets the calls of a connection; called by the threads that call."""

    def called(self, method: str, seconds: float) -> None:
        """Milvus answered a call after this time."""

    def failed(self, method: str, reason: str) -> None:
        """A call failed."""


class Connection:
    """A connection to Milvus; thread-safe.

    Attributes:
        name: The address and the database, without credentials, for messages.
        observer: Gets the calls that answers make; None if nothing does.

    Raises:
        SettingsError: If no URI is given, the URI does not fit to the other settings, or pymilvus is not installed.
        EngineError: If Milvus does not answer.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if settings.engine_uri is None:
            raise SettingsError(
                "--engine-uri: required for a version whose keys are in Milvus; set RECOLLECT_ENGINE_URI, which all "
                "commands read"
            )
        if importlib.util.find_spec("pymilvus") is None:
            raise SettingsError(
                "--engine-uri: needs pymilvus, which is not installed; pip install 'recollect-xmc[milvus]'"
            )
        uri = settings.engine_uri.get_secret_value()
        self.name = _public_name(uri)
        self.observer: CallObserver | None = None
        _check_address(settings, uri)
        self._seconds, self._breaker = settings.engine_seconds, Breaker(self.name, self._answers)
        self._in_use: list[str] = []
        from recollect.service.milvus.client import CALL_ERRORS, failure, open_client, reason

        try:
            self._client = open_client(settings)
        except (*CALL_ERRORS, OSError, ValueError) as error:
            if isinstance(error, CALL_ERRORS) and failure(error) == "unauthenticated":
                raise EngineError(self._refused_token(error)) from None
            raise EngineError(
                f"{self.name}: expected Milvus to answer, found: {reason(error)}; {_advice(self.name)}"
            ) from None
        try:
            self._require_version()
        except BaseException:
            self.close()
            raise

    @property
    def problem(self) -> str | None:
        """The reason why calls fail at once; None while the circuit breaker is closed."""
        return self._breaker.problem

    def load(self, collection: str) -> None:
        """Load a collection, which may take minutes, and use it from now on.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        self.call("load_collection", collection, seconds=_LOAD_SECONDS)
        if collection not in self._in_use:
            self._in_use.append(collection)

    def call(self, method: str, *arguments: Any, seconds: float | None = None, **options: Any) -> Any:
        """Call a method of pymilvus's client.

        Args:
            method: Name of the method.
            arguments: Its arguments; usually the name of a collection.
            seconds: Time limit of the call; None means that of the settings.
            options: Further arguments of the method.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        limit = seconds or self._seconds
        function = functools.partial(getattr(self._client, method), *arguments, timeout=limit, **options)
        return self.guard(function, method, " of ".join([method, *map(str, arguments)]), limit)

    def guard(self, function: Callable[[], Any], method: str, called: str, limit: float | None = None) -> Any:
        """Call a function that calls Milvus; call it again if the connection was lost.

        Args:
            function: The function.
            method: Name of the method that it calls.
            called: Description of the call, for error messages.
            limit: Its time limit, for error messages; None means that of the settings.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        from recollect.service.milvus.client import CALL_ERRORS, failure

        start, repeated = time.monotonic(), iter(_RETRY_SECONDS)
        while True:
            if self.problem is not None:
                raise EngineError(self.problem)
            try:
                found = function()
            except CALL_ERRORS as error:
                kind = failure(error)
                wait = next(repeated, None) if kind == "unreachable" else None
                if wait is None or self._breaker.wait(wait):
                    raise self._failed(error, kind, method, called, limit or self._seconds) from None
            else:
                self._breaker.succeeded()
                if self.observer is not None:
                    self.observer.called(method, time.monotonic() - start)
                return found

    def collections(self) -> list[str]:
        """The names of all collections."""
        found: list[str] = self.call("list_collections")
        return found

    def close(self) -> None:
        self._breaker.close()
        self._client.close()

    def _require_version(self) -> None:
        version = str(self.call("get_server_version"))
        found = re.match(r"v?(\d+)\.(\d+)", version)
        if found is not None and (int(found[1]), int(found[2])) < _LEAST_VERSION:
            raise EngineError(
                f"{self.name}: expected Milvus {'.'.join(map(str, _LEAST_VERSION))} or later, found {version}; "
                "upgrade the server"
            )

    def _failed(self, error: Exception, kind: Failure, method: str, called: str, limit: float) -> EngineError:
        """Count a failure, and return the error that a caller gets."""
        from recollect.service.milvus.client import reason

        match kind:
            case "unreachable":
                message = f"{self.name}: Milvus does not answer; try again shortly"
            case "unauthenticated":
                message = self._refused_token(error)
            case "timeout":
                message = f"{self.name}: {called} took longer than {limit:g} s (--engine-seconds); try again shortly"
            case "not_loaded":
                message = f"{self.name}: {called}: Milvus loads the collection; try again shortly"
            case _:
                message = f"{self.name}: expected Milvus to accept {called}, found: {reason(error)}"
        if self.observer is not None:
            self.observer.failed(method, kind)
        self._breaker.failed(message, kind)
        return EngineError(message)

    def _refused_token(self, error: Exception) -> str:
        from recollect.service.milvus.client import reason

        return (
            f"{self.name}: expected Milvus to accept the token of --engine-token, found: {reason(error)}; set "
            "RECOLLECT_ENGINE_TOKEN to USER:PASSWORD or an API key"
        )

    def _answers(self) -> bool:
        """Whether Milvus reads a row of each collection in use. A collection that is not loaded is loaded first."""
        from recollect.service.milvus.client import CALL_ERRORS, failure

        try:
            self._client.list_collections(timeout=self._seconds)
            for name in self._in_use:
                read = functools.partial(self._client.query, name, filter="row == 0", timeout=self._seconds)
                try:
                    read()
                except CALL_ERRORS as error:
                    if failure(error) != "not_loaded":
                        return False
                    self._client.load_collection(name, timeout=_LOAD_SECONDS)
                    read()
        except (*CALL_ERRORS, ValueError):  # ValueError: the connection was closed
            return False
        return True


def _public_name(uri: str) -> str:
    if uri.endswith(".db"):
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _advice(name: str) -> str:
    """The last part of an error message: what to check if Milvus does not answer at this address."""
    if name.endswith(".db"):
        return "a file .db can be open in one process only, so several processes need milvus-lite server"
    if name.startswith("https://"):  # gRPC does not say why a handshake failed
        return (
            "check --engine-uri and --engine-token; does Milvus speak TLS, is its certificate for this host name, and "
            "is the CA in --engine-ca?"
        )
    return "check --engine-uri and --engine-token; a server with TLS needs https://"


def _check_address(settings: EngineSettings, uri: str) -> None:
    if uri.endswith(".db") and not Path(uri).parent.is_dir():
        raise SettingsError(f"--engine-uri: expected a file in an existing folder, found {uri}; create the folder")
    if settings.engine_ca is not None and not uri.startswith("https://"):
        raise SettingsError(
            "--engine-ca: expected an --engine-uri that begins with https://, because only TLS has certificates; "
            "change the URI, or leave --engine-ca out"
        )
    if settings.engine_ca is not None:
        try:
            ssl.create_default_context(cafile=settings.engine_ca)
        except OSError as error:
            problem = "no valid certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise SettingsError(
                f"--engine-ca: expected a file with CA certificates in PEM format, found {settings.engine_ca}: "
                f"{problem}; check the path and the file"
            ) from None
