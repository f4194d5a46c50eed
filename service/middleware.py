"""Around every request: an id, the version that answered, an answer even to a fault, and a limit on the body."""

from __future__ import annotations

import re
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.live import Live
from service.problems import problem_response

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

# A body over the limit is read to its end up to here, so that its sender gets an answer, not a broken pipe.
_DRAIN_BYTES = 64 << 20


class RequestContext:
    """Sets `X-Request-Id`, echoed or made, and `X-Index-Version` on every response; logs faults under that id."""

    def __init__(self, app: ASGIApp, live: Live) -> None:
        self._app, self._live = app, live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if version := self._live.version():
                    headers.setdefault("X-Index-Version", version)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            log.error("request_failed", path=scope["path"], exc_info=error)
            if started:
                raise
            fault = problem_response(500, "the service failed on this request; its log says why")
            await fault(scope, receive, send_with_headers)
        finally:
            structlog.contextvars.unbind_contextvars("request_id")


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
        """The body; None if it is over the limit."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b"".join(chunks)
            size += len(message.get("body", b""))
            if size <= self._max_bytes:
                chunks.append(message.get("body", b""))
            else:
                chunks.clear()
            if not message.get("more_body", False) or size > _DRAIN_BYTES:
                return b"".join(chunks) if size <= self._max_bytes else None
