"""Errors as problem details (RFC 9457) with a stable `code`. This module maps every error to a response."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from recollect.core.errors import RateLimitError, ServiceError, VersionNotOpenError
from recollect.service.http.schemas import ONE_OF, Problem

# The default code and the title of each status.
_STATUSES = {
    401: ("unauthorized", "Unauthorized"),
    403: ("forbidden", "Forbidden"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "Method not allowed"),
    409: ("conflict", "Conflict"),
    413: ("too_large", "Too large"),
    415: ("unsupported_encoding", "Unsupported encoding"),
    421: ("unknown_host", "Unknown host"),
    422: ("invalid_request", "Invalid request"),
    429: ("rate_limited", "Rate limited"),
    499: ("client_gone", "Client gone"),
    500: ("internal", "Internal error"),
    503: ("not_ready", "Not ready"),
    504: ("deadline_passed", "Deadline passed"),
    507: ("memory_full", "Memory full"),
}
_RETRY_AFTER_SECONDS = "1"
NOT_JSON = "body: expected a JSON object, sent as Content-Type: application/json"
_MEDIA_TYPE = "application/problem+json"
# Limits of the size of a problem: number of listed errors, and characters of a field's name.
_MAX_ERRORS = 10
_MAX_FIELD_CHARACTERS = 80
# Types of pydantic's errors about a body that must be a list.
_LIST_ERRORS = ("list_type", "too_long")


class ProblemError(Exception):
    """An error that a route raises; `code` defaults to the status's code."""

    def __init__(
        self, status: int, detail: str, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.code, self.headers = status, detail, code, headers


def problem_response(
    status: int,
    detail: str,
    code: str | None = None,
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
    open_versions: list[str] | None = None,
) -> Response:
    default_code, title = _STATUSES.get(status, ("error", "Error"))
    problem = Problem(
        title=title, status=status, code=code or default_code, detail=detail, errors=errors, open_versions=open_versions
    )
    if status == 503:
        headers = {"Retry-After": _RETRY_AFTER_SECONDS, **(headers or {})}
    content = problem.model_dump(exclude_none=True)
    return JSONResponse(content, status, headers=headers, media_type=_MEDIA_TYPE)


def failure() -> Response:
    """The response to an unexpected error."""
    return problem_response(500, "the service failed on this request; its log has the reason")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of these error statuses in `/docs`."""
    content = {_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _STATUSES[status][1], "content": content} for status in statuses}


def install(app: FastAPI) -> None:
    """Answer every error with a problem. `Gateway` logs the unexpected errors."""

    async def respond(request: Request, error: Exception) -> Response:
        return expected_problem(request.scope, error)

    async def respond_to_failure(request: Request, error: Exception) -> Response:
        return failure()

    for kind in (ProblemError, ServiceError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(Exception, respond_to_failure)


def expected_problem(scope: Scope, error: Exception) -> Response:
    """The response to an expected error. Other errors are raised again."""
    if isinstance(error, ProblemError):
        return problem_response(error.status, error.detail, error.code, headers=error.headers)
    if isinstance(error, ServiceError):
        headers = {"Retry-After": str(math.ceil(error.wait_seconds))} if isinstance(error, RateLimitError) else None
        open_versions = error.open_versions if isinstance(error, VersionNotOpenError) else None
        return problem_response(error.status, str(error), error.code, headers=headers, open_versions=open_versions)
    if isinstance(error, RequestValidationError):
        errors = [_field_problem(problem) for problem in error.errors()[:_MAX_ERRORS]]
        return problem_response(422, f"{errors[0]['field']}: {errors[0]['message']}", errors=errors)
    if isinstance(error, HTTPException):
        if error.status_code == 400:  # the body is not UTF-8, or is nested too deep
            return problem_response(422, "body: expected JSON, found bytes that are not UTF-8, or too deep a nesting")
        detail = f"{scope['method']} {scope['path']}: {error.detail}"
        return problem_response(error.status_code, detail, headers=error.headers)
    raise error


def _field_problem(error: Mapping[str, Any]) -> dict[str, str]:
    """The name of the wrong field and the reason. The value may be large or not representable in JSON."""
    where = [str(part) for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        return {"field": "body", "message": f"expected JSON: {error['ctx']['error']}"}
    if error["type"] == ONE_OF:
        where = [error["ctx"]["field"]]
    if not where and error["type"] not in _LIST_ERRORS:
        return {"field": "body", "message": NOT_JSON.removeprefix("body: ")}
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown field; /docs lists the fields"
    return {"field": ".".join(where)[:_MAX_FIELD_CHARACTERS] if where else "body", "message": message}
