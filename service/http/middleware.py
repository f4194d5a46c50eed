"""The layer around every request: checks API key and body, adds headers, counts and logs."""

from __future__ import annotations

import asyncio
import random
import re
import time

import structlog
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from recollect.core.errors import DrainingError
from recollect.core.options import BYTES_PER_UNIT
from recollect.core.system.reloaded_file import ReloadedFile
from recollect.core.texts import CONTROL_CHARACTERS
from recollect.service.http.api_keys import ApiKey, ApiKeys
from recollect.service.http.json_route import JsonRoute, header
from recollect.service.http.predict_routes import VERSION_HEADER
from recollect.service.http.problems import ProblemError, expected_problem, failure, problem_response
from recollect.service.serving.rate_limit import RateLimits
from recollect.service.settings import ServeSettings
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import OpenVersions

log = structlog.get_logger(__name__)

_CONTROL_CHARACTERS = re.compile(CONTROL_CHARACTERS)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

# The rest of a body over the limit is read up to this size, so that the client gets a response and not a broken
# connection.
_MAX_DISCARDED_BYTES = 64 << 20

# Paths that have their own label in the metrics. All other paths share one label, because clients can send any number
# of different paths.
_PATHS = frozenset({"/predict", "/predict/batch", "/labels", "/version", "/health/live", "/health/ready", "/metrics"})

# The labels of paths that contain a name, by the beginnings of the paths.
_FAMILIES = (
    ("/labels/", "/labels/{uid}"),
    ("/versions", "/versions"),
    ("/memory", "/memory"),
    ("/feedback", "/feedback"),
    ("/v1/projects", "/v1/projects"),
)

# A browser must not guess that an answer is a page or a script.
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")

# The beginnings of the paths of the documentation.
_DOCS_PATHS = ("/openapi.json", "/docs", "/redoc")
# Beginnings of paths that need an API key, if keys are configured: their answers reveal training data, or they change
# the versions.
_GUARDED = ("/predict", "/labels", "/version", "/playground/bundle", "/memory", "/feedback", "/v1/")


class Gateway:
    """Passes a request to its route, and adds `X-Request-Id` and `X-Index-Version` to the response.

    Before that:

    - 421 for a request that names an unknown host, except for the paths of health checks.
    - 401 for a request without a known API key, if its path needs one; otherwise the key is `scope["api_key"]`.
    - 415 for a compressed body, and 413 for a body over the limit, whether or not the request declares its length.
    - The API key pays for the bytes of the body; `scope["paid"]` is this part of the cost of the request.
    - `HEAD` becomes `GET`; uvicorn sends the answer's headers without its body.
    """

    def __init__(
        self,
        app: FastAPI,
        versions: OpenVersions,
        rate_limits: RateLimits,
        metrics: Metrics,
        settings: ServeSettings,
        keys: ReloadedFile[ApiKeys] | None,
    ) -> None:
        self._app, self._versions, self._metrics, self._keys = app, versions, metrics, keys
        self._rate_limits = rate_limits
        self._max_body_bytes, self._access_log = settings.max_body_bytes, settings.access_log
        self._host_names = settings.host_names
        docs = _DOCS_PATHS if settings.docs == "key" else ()
        self._guarded = (*_GUARDED, *docs, *(("/metrics",) if settings.metrics == "key" else ()))
        self._json_routes = {route.path: route for route in app.routes if isinstance(route, JsonRoute)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        request_id = header(scope, b"x-request-id")
        if not _REQUEST_ID.fullmatch(request_id):
            # `uuid4` would read random bytes from the kernel, release Python's lock meanwhile, and have to wait for it.
            request_id = f"{random.getrandbits(128):032x}"
        structlog.contextvars.bind_contextvars(request_id=request_id)  # every request is a task with its own context
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, own = message["status"], ((b"x-request-id", request_id.encode()), _NO_SNIFFING)
                headers = [*message["headers"], *own]
                version = self._versions.version()
                if version and not any(name == VERSION_HEADER for name, _ in headers):
                    headers.append((VERSION_HEADER, version.encode()))
                if self._versions.draining:  # the client must connect to another replica
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        try:
            await self._answer(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # uvicorn cancels the requests that are left at the end of the drain
            if status or not self._versions.draining:
                raise
            response = problem_response(503, str(DrainingError()), "draining")
            await response(scope, receive, send_with_headers)
        except Exception as error:
            log.error("request_failed", path=scope["path"], exc_info=error)
            if not status:  # otherwise uvicorn closes the connection
                await failure()(scope, receive, send_with_headers)
        finally:
            if status:  # status 0: the client disconnected before the response started
                self._record(scope, status, time.perf_counter() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
            body = await self._read(receive)
            if body:
                scope["paid"] = max(1, len(body) // BYTES_PER_UNIT)
                await self._rate_limits.charge(scope.get("api_key"), scope["paid"])
            pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return pending.pop() if pending else await receive()

            route = self._json_routes.get(scope["path"]) if scope["method"] == "POST" else None
            if route is None:  # the scope of uvicorn keeps the method `HEAD`
                await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, replay, send)
                return
            response = await route.answer(Request(scope, replay), body)
        except Exception as error:
            response = expected_problem(scope, error)
        await response(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Refuse a request by its path and its headers."""
        # A pattern of a route ends before a newline, so `a%0A` would mean `a`. No path and no uid has such characters.
        if _CONTROL_CHARACTERS.search(scope["path"]):
            raise ProblemError(404, "nothing is here")
        if self._host_names is not None and not scope["path"].startswith("/health/"):
            name = _host_name(header(scope, b"host"))
            if name not in self._host_names:
                raise ProblemError(
                    421, f"host: expected a name of --allowed-hosts, found {name[:80]!r}; add this name to the flag"
                )
        if self._keys is not None and scope["path"].startswith(self._guarded) and scope["method"] != "OPTIONS":
            scope["api_key"] = self._keys.content.find(_secret(scope))
            if scope["api_key"] is None:
                detail = "expected a known API key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`, found none"
                raise ProblemError(401, detail, headers={"WWW-Authenticate": "Bearer"})
        if header(scope, b"content-encoding").strip().lower() not in ("", "identity"):
            detail = "expected a body without Content-Encoding, found one; send the body uncompressed"
            raise ProblemError(415, detail, headers={"Accept-Encoding": "identity"})

    async def _read(self, receive: Receive) -> bytes:
        limit, size, chunks = self._max_body_bytes, 0, list[bytes]()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            size += len(message.get("body", b""))
            if size <= limit:
                chunks.append(message.get("body", b""))
            if size > max(limit, _MAX_DISCARDED_BYTES) or not message.get("more_body", False):
                break
        if size > limit:
            raise ProblemError(413, f"the body exceeds {limit:,} bytes; send shorter or fewer texts at a time")
        return b"".join(chunks)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        path: str = scope["path"]
        self._metrics.count_request(route_of(path), status, seconds)
        if self._access_log:
            key: ApiKey | None = scope.get("api_key")
            log.info(
                "request",
                method=scope["method"],
                path=path,
                status=status,
                milliseconds=round(1e3 * seconds, 3),
                client=(scope.get("client") or ("",))[0],
                key=key.name if key else None,
            )


def route_of(path: str) -> str:
    """The label of a path in metrics and traces. It contains nothing that a client chose."""
    if path in _PATHS:
        return path
    return next((label for beginning, label in _FAMILIES if path.startswith(beginning)), "other")


def _host_name(host: str) -> str:
    """The name in a `Host` header, in lower case, without its port."""
    name, colon, port = host.lower().rpartition(":")
    return (name if colon and port.isdecimal() else host.lower()).strip("[]")


def _secret(scope: Scope) -> str:
    """The secret in the header `Authorization: Bearer SECRET`, otherwise that in `X-API-Key`."""
    scheme, _, token = header(scope, b"authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key")
