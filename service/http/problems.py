"""Errors on the wire: problem details (RFC 9457), each with a stable `code` and words that help."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from service.errors import NotReadyError, OverloadError, QueryError
from service.http.schemas import Problem

_TITLES = {
    400: ("invalid_http", "Invalid HTTP"),
    401: ("unauthorized", "Unauthorized"),
    403: ("forbidden", "Forbidden"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "Method not allowed"),
    408: ("request_timeout", "Request timeout"),
    409: ("conflict", "Conflict"),
    413: ("too_large", "Too large"),
    422: ("invalid_request", "Invalid request"),
    429: ("rate_limited", "Rate limited"),
    431: ("head_too_large", "Head too large"),
    500: ("internal", "Internal error"),
    503: ("not_ready", "Not ready"),
    504: ("deadline_passed", "Deadline passed"),
}
_RETRY_AFTER_SECONDS = "1"
NOT_JSON = "body: expected a JSON object, sent as Content-Type: application/json"
_MEDIA_TYPE = "application/problem+json"
# What an answer repeats of a request: so many faults, so much of a field's name.
_MOST_ERRORS = 10
_FIELD_CHARACTERS = 80


class ProblemError(Exception):
    """An answer that is an error; `code` defaults to the status's own."""

    def __init__(
        self,
        status: int,
        detail: str,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.code, self.headers, self.errors = status, detail, code, headers, errors


def problem_response(
    status: int,
    detail: str,
    code: str | None = None,
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    default_code, title = _TITLES.get(status, ("error", "Error"))
    problem = Problem(title=title, status=status, code=code or default_code, detail=detail, errors=errors)
    if status == 503:
        headers = {"Retry-After": _RETRY_AFTER_SECONDS, **(headers or {})}
    content = problem.model_dump(exclude_none=True)
    return JSONResponse(content, status, headers=headers, media_type=_MEDIA_TYPE)


def problem_bytes(status: int, detail: str) -> bytes:
    """The whole HTTP response, where there is no request yet to respond to."""
    code, title = _TITLES[status]
    body = Problem(title=title, status=status, code=code, detail=detail).model_dump_json(exclude_none=True).encode()
    head = f"HTTP/1.1 {status} {title}\r\nContent-Type: {_MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}X-Request-Id: {uuid.uuid4().hex}\r\nConnection: close\r\n\r\n".encode() + body


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What `/docs` says of these statuses."""
    content = {_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _TITLES[status][1], "content": content} for status in statuses}


def install(app: FastAPI) -> None:
    """Turn every kind of error into a problem; faults of ours are `RequestContext`'s, which knows the request's id."""

    async def on_error(request: Request, error: Exception) -> Response:
        return problem_of(error)

    for kind in (ProblemError, NotReadyError, OverloadError, QueryError, RequestValidationError):
        app.add_exception_handler(kind, on_error)

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # how FastAPI puts all that is no JSON but a mere syntax error
            return problem_response(422, "body: expected JSON, found bytes that are no UTF-8, or nesting without end")
        detail = f"{request.method} {request.url.path}: {error.detail}"
        return problem_response(error.status_code, detail, headers=error.headers)


def problem_of(error: Exception) -> Response:
    """The response to an error of the request's own, or to one that will pass.

    Raises:
        Exception: The error itself, where it is a fault of ours.
    """
    match error:
        case ProblemError():
            return problem_response(error.status, error.detail, error.code, error.errors, error.headers)
        case NotReadyError():
            return problem_response(503, str(error))
        case OverloadError():
            return problem_response(503, str(error), "overloaded")
        case QueryError():
            return problem_response(422, str(error))
        case RequestValidationError():
            return problem_of(invalid(error))
    raise error


def invalid(error: RequestValidationError | ValidationError) -> ProblemError:
    """The problem of a body that is not what it must be."""
    errors = [_field_problem(each) for each in error.errors()[:_MOST_ERRORS]]
    first = errors[0]
    return ProblemError(422, f"{first['field']}: {first['message']}", errors=errors)


def _field_problem(error: Mapping[str, Any]) -> dict[str, str]:
    """Where and what, without the offending value: it may be huge, or no JSON."""
    where = [str(part) for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        return {"field": "body", "message": f"expected JSON: {error['ctx']['error']}"}
    if not where:
        return {"field": "body", "message": NOT_JSON.removeprefix("body: ")}
    message = str(error["msg"]).removeprefix("Value error, ")
    return {"field": ".".join(where)[:_FIELD_CHARACTERS], "message": message}
