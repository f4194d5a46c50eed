"""Routes with a body in JSON: the checks of the body, which FastAPI's own routes do not have."""

from __future__ import annotations

import functools
from typing import TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Scope

from recollect.service.http.problems import NOT_JSON, ProblemError

# Maximum number of lists, objects and fields in a body. Parsing a megabyte of nested lists would block the event loop
# for half a second, and an error for each of 100,000 unknown fields for 0.3 s.
_MAX_MEMBERS = 1_000
# Maximum number of commas in a body; the longest filters need 200,000. A list of 262,000 strings would block the event
# loop for 27 to 57 ms.
_MAX_COMMAS = 210_000
# All bytes that neither begin a member nor limit a string.
_OTHER_BYTES = bytes(set(range(256)) - set(b'[{:"'))

_Model = TypeVar("_Model", bound=BaseModel)


def header(scope: Scope, name: bytes) -> str:
    """The first value of a header; empty without the header."""
    for each, value in scope["headers"]:
        if each == name:
            return str(value, "latin-1")
    return ""


class JsonRoute(APIRoute):
    """A route that parses the request body itself, and passes it to the handler.

    FastAPI only documents this route. The middleware calls `answer`, because FastAPI takes 50 microseconds to find and
    to call a route.
    """

    async def answer(self, request: Request, body: bytes) -> Response:
        """Parse the body, and call the handler.

        Raises:
            ProblemError: If the content type is not JSON.
            RequestValidationError: If the body does not fit the model of the route.
        """
        _require_json(request.scope)
        response: Response = await self.endpoint(await self.parse(self._model, body), request)
        return response

    async def parse(self, model: type[_Model], body: bytes) -> _Model:
        return parse_body(model, body)

    @functools.cached_property
    def _model(self) -> type[BaseModel]:
        assert self.body_field is not None
        model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]
        return model


def _require_json(scope: Scope) -> None:
    """Check the content type of a request.

    Raises:
        ProblemError: If it is not JSON.
    """
    media_type = header(scope, b"content-type").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise ProblemError(422, NOT_JSON)


def parse_body(model: type[_Model], body: bytes, max_members: int = _MAX_MEMBERS) -> _Model:
    """Parse and validate a body. A body of a megabyte blocks the event loop for less than 50 ms.

    Args:
        model: The model of the body.
        body: The body.
        max_members: Maximum number of lists, objects and fields in the body.

    Raises:
        RequestValidationError: If the body is not valid JSON, or does not fit the model.
    """
    if body.count(b",") > _MAX_COMMAS:
        raise _too_large(f"at most {_MAX_COMMAS:,} commas, found more; send shorter lists")
    if _has_many_members(body, max_members):
        raise _too_large(f"at most {max_members:,} lists, objects and fields, found more")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> RequestValidationError:
    """The error for a request that does not fit its model, without the values of the request."""
    return RequestValidationError(error.errors(include_url=False, include_input=False))


def _too_large(reason: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": reason, "ctx": {"error": reason}}])


def _has_many_members(body: bytes, most: int) -> bool:
    """Whether the body has too many brackets and colons outside strings."""
    if _count_members(body) <= most:
        return False
    marks = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHER_BYTES)
    # After the removal of empty pairs of quotation marks, there is a member between two strings. So a few pieces show
    # whether there are too many members. Splitting a megabyte of quotation marks would block the event loop for 100 ms.
    pieces = marks.replace(b'""', b"").split(b'"', 2 * most + 4)
    return _count_members(b"".join(pieces[::2])) > most


def _count_members(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b":")
