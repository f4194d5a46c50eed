"""A connection to Milvus: while Milvus does not answer, calls fail at once, and a thread asks Milvus every second."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from typing import Any

import structlog

from recollect.core.errors import EngineError, SettingsError
from recollect.core.search.searcher import Observer
from recollect.core.settings import EngineSettings

log = structlog.get_logger(__name__)

# The names of all collections that builds create begin with this.
PREFIX = "recollect_"

_LOAD_SECONDS, _CONNECT_SECONDS, _PROBE_SECONDS = 600.0, 10.0, 1.0
# The codes of gRPC and of Milvus for calls that Milvus does not answer. The kind of all other failures is `refused`.
_KINDS: dict[Any, str] = {"UNAVAILABLE": "unreachable", "CANCELLED": "unreachable", 2: "unreachable"}
_KINDS |= {"DEADLINE_EXCEEDED": "timeout", "UNAUTHENTICATED": "unauthenticated", 1400: "unauthenticated"}
_KINDS |= {101: "not_loaded", 103: "not_loaded"}  # at all, or not completely
_MESSAGES = {
    "unreachable": "Milvus does not answer; try again shortly",
    "timeout": "{call} took longer than --engine-seconds; try again shortly",
    "not_loaded": "{call}: Milvus loads the collection; try again shortly",
    "unauthenticated": "expected Milvus to accept the token, found: {reason}; set RECOLLECT_ENGINE_TOKEN",
    "refused": "expected Milvus to accept {call}, found: {reason}",
}


class Connection:
    """A connection to Milvus; thread-safe.

    Attributes:
        name: The address and the database, without credentials, for messages.
        problem: Why calls fail at once; None while Milvus answers.
        observer: Gets all calls; None if nothing does.

    Raises:
        SettingsError: If no URI is given.
        EngineError: If Milvus does not answer.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if settings.engine_uri is None:
            raise SettingsError(
                "--engine-uri: required for a version whose keys are in Milvus; set RECOLLECT_ENGINE_URI, which all "
                "commands read"
            )
        import grpc
        from pymilvus import MilvusClient, MilvusException

        for library in ("pymilvus", "milvus_lite", "grpc"):  # errors are raised too, and messages can contain the URI
            logging.getLogger(library).setLevel(logging.CRITICAL)
        uri, token = settings.engine_uri.get_secret_value(), settings.engine_token
        self.name, self._seconds = re.sub("//[^/]*@", "//", uri).rstrip("/"), settings.engine_seconds
        self.problem: str | None = None
        self.observer: Observer | None = None
        self._used: list[str] = []
        self._errors = (MilvusException, grpc.RpcError)
        self._losing, self._closed = threading.Lock(), threading.Event()
        # A gRPC server closes a connection that sends pings more often than every five minutes.
        options: dict[str, Any] = {"grpc_options": {"grpc.keepalive_time_ms": 300_000}}
        if token is not None:
            options["token"] = token.get_secret_value()
        if settings.engine_ca is not None:
            options["server_pem_path"] = str(settings.engine_ca)  # `ca_pem_path` is for client certificates only
        try:
            self._client = MilvusClient(uri, timeout=min(self._seconds, _CONNECT_SECONDS), dedicated=True, **options)
        except (*self._errors, OSError, ValueError) as error:
            raise EngineError(
                f"{self.name}: expected Milvus to answer, found: {_reason(error)}; check --engine-uri (https:// for "
                "TLS; one process alone can open a file .db), --engine-token and --engine-ca"
            ) from None

    def call(self, method: str, *arguments: Any, seconds: float | None = None, **options: Any) -> Any:
        """Call a method of pymilvus's client, with a time limit of some seconds or that of the settings.

        Raises:
            EngineError: If Milvus does not answer, or refuses the call.
        """
        if self.problem is not None:
            raise EngineError(self.problem)
        start, kind = time.monotonic(), None
        try:
            return getattr(self._client, method)(*arguments, timeout=seconds or self._seconds, **options)
        except self._errors as error:
            kind, call = _kind(error), " of ".join([method, *map(str, arguments)])
            problem = f"{self.name}: {_MESSAGES[kind].format(call=call, reason=_reason(error))}"
            if kind != "refused":
                self._lose(problem)
            raise EngineError(problem) from None
        finally:
            if self.observer is not None:
                self.observer(method, time.monotonic() - start, kind)

    def load(self, collection: str) -> None:
        """Load a collection, which may take minutes, and use it from now on."""
        self.call("load_collection", collection, seconds=_LOAD_SECONDS)
        self._used.append(collection)

    def drop(self, *collections: str) -> None:
        """Drop the collections that exist."""
        for name in collections:
            if self.call("has_collection", name):
                self.call("drop_collection", name)

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    def _lose(self, problem: str) -> None:
        with self._losing:
            if self.problem is not None or self._closed.is_set():
                return
            self.problem = problem
        log.warning("engine_down", why=problem)
        threading.Thread(target=self._probe, name="engine-probe", daemon=True).start()

    def _probe(self) -> None:
        """Read a row of each used collection every second, until Milvus answers. Load a collection that is not."""
        lost = time.monotonic()
        while not self._closed.wait(_PROBE_SECONDS):
            with contextlib.suppress(*self._errors, ValueError):  # ValueError: the connection was closed
                for name in self._used:
                    try:
                        self._client.query(name, filter="row == 0", timeout=self._seconds)
                    except self._errors as error:
                        if _kind(error) != "not_loaded":
                            raise
                        self._client.load_collection(name, timeout=_LOAD_SECONDS)
                self.problem = None
                log.info("engine_up", engine=self.name, seconds=round(time.monotonic() - lost, 1))
                return


def _kind(error: Exception) -> str:
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    return _KINDS.get(getattr(code, "name", code), "refused")


def _reason(error: BaseException) -> str:
    """The message of an error, in one line. The cause of an error of pymilvus says more than the error."""
    error = error.__cause__ or error
    found = error.details() if hasattr(error, "details") else getattr(error, "message", None)
    return str(found or error).partition("\n")[0][:500] or repr(error)
