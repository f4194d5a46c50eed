"""Around every request: an id, the version that answered, an answer even to a fault, and a limit on the body."""

from __future__ import annotations

import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.problems import problem_response
from service.telemetry.metrics import Telemetry
from service.versions.model_manager import ModelManager

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

# A body over the limit is read to its end up to here, so that its sender gets an answer, not a broken pipe.
_DRAIN_BYTES = 64 << 20

# What requests are counted under; any other path would be a label of its own for whoever makes one up.
_PATHS = frozenset({"/predict", "/predict/batch", "/version", "/health/live", "/health/ready", "/metrics"})


class RequestContext:
    """Sets `X-Request-Id`, echoed or made, and `X-Index-Version` on every response; counts it, and logs faults."""

    def __init__(self, app: ASGIApp, live: ModelManager, telemetry: Telemetry | None, access_log: bool) -> None:
        self._app, self._live, self._telemetry, self._access_log = app, live, telemetry, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.bind_contextvars(request_id=request_id)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if version := self._live.version():
                    headers.setdefault("X-Index-Version", version)
                if self._live.draining:  # whoever keeps this connection had better ask another replica
                    headers["Connection"] = "close"
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception as error:
            log.error("request_failed", path=scope["path"], exc_info=error)
            if status:
                raise
            fault = problem_response(500, "the service failed on this request; its log says why")
            await fault(scope, receive, send_with_headers)
        finally:
            self._told(scope, status, time.perf_counter() - start)
            structlog.contextvars.unbind_contextvars("request_id")

    def _told(self, scope: Scope, status: int, seconds: float) -> None:
        if not status:  # its client left before it had said all
            return
        path: str = scope["path"]
        if self._telemetry:
            self._telemetry.request(_counted_as(path), status, seconds)
        if self._access_log:
            key = scope.get("api_key")
            milliseconds = round(1e3 * seconds, 3)
            log.info(
                "request",
                method=scope["method"],
                path=path,
                status=status,
                milliseconds=milliseconds,
                client=(scope.get("client") or ("",))[0],
                key=key.name if key else None,
            )


def _counted_as(path: str) -> str:
    if path in _PATHS:
        return path
    return "/labels/{uid}" if path.startswith("/labels/") else "other"


class BodyLimit:
    """Answers 413 to a body over the limit, however it is sent; a smaller one is handed on whole."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            detail = f"the body is over {self._max_bytes:,} bytes; send a shorter query, or fewer at a time"
            await problem_response(413, detail)(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None if it is over the limit.

        Raises:
            ClientDisconnect: If there will be no more of it.
        """
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            size += len(message.get("body", b""))
            if size <= self._max_bytes:
                chunks.append(message.get("body", b""))
            else:
                chunks.clear()
            if not message.get("more_body", False) or size > _DRAIN_BYTES:
                return b"".join(chunks) if size <= self._max_bytes else None
