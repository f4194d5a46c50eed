"""Routes with a body in JSON: the checks of the body, which FastAPI's own routes do not have."""

from __future__ import annotations

import asyncio
import functools
from typing import TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Scope

from recollect.service.http.problems import NOT_JSON, ProblemError

# Maximum numbers of some characters in a body, of its fields, and of its wrong fields. The longest filters need 200,000
# commas. Without the limits, parsing a megabyte of nested lists would block the event loop for half a second, and an
# error for each of 100,000 unknown fields for 0.1 s.
_MAX_IN_BODY = {b",": 210_000, b'":': 50_000, b"[": 20_000, b"{": 20_000}
_MAX_ERRORS = 1_000
# Size of a body that is parsed on the event loop.
_MAX_BYTES_ON_LOOP = 65_536

_Model = TypeVar("_Model", bound=BaseModel)


def header(scope: Scope, name: bytes) -> str:
    """The first value of a header; empty without the header."""
    for own_name, value in scope["headers"]:
        if own_name == name:
            return str(value, "latin-1")
    return ""


class JsonRoute(APIRoute):
    """A route that parses the request body itself, and passes it to the handler.

    FastAPI only documents this route. The middleware calls `answer`, because FastAPI takes 50 microseconds to find and
    to call a route.
    """

    async def answer(self, request: Request, body: bytes) -> Response:
        _require_json(request.scope)
        response: Response = await self.endpoint(await parse_body(self._model, body), request)
        return response

    @functools.cached_property
    def _model(self) -> type[BaseModel]:
        assert self.body_field is not None
        model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]
        return model


def _require_json(scope: Scope) -> None:
    media_type = header(scope, b"content-type").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise ProblemError(422, NOT_JSON)


async def parse_body(model: type[_Model], body: bytes) -> _Model:
    """Parse and validate a body. A long one is parsed in a thread, because its checks would block the event loop.

    Raises:
        RequestValidationError: If the body is not valid JSON, or does not fit the model.
    """
    if len(body) <= _MAX_BYTES_ON_LOOP:
        return _parse(model, body)
    return await asyncio.to_thread(_parse, model, body)


def _parse(model: type[_Model], body: bytes) -> _Model:
    for character, limit in _MAX_IN_BODY.items():
        if body.count(character) > limit:
            raise _too_large(
                f"at most {limit:,} times the character {character.decode()}, found more; send less at once"
            )
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> RequestValidationError:
    """The error for a request that does not fit its model, without the values of the request."""
    if error.error_count() > _MAX_ERRORS:
        return _too_large(f"at most {_MAX_ERRORS:,} wrong fields, found more")
    return RequestValidationError(error.errors(include_url=False, include_input=False))


def _too_large(reason: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": reason, "ctx": {"error": reason}}])
