"""The shortcut: what is asked all the time goes straight to its endpoint, past the framework's own layers.

The endpoints are the framework's too, which documents them; they answer the same by either way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.http.problems import NOT_JSON, ProblemError, invalid, problem_of
from service.versions.model_manager import ModelManager

# An endpoint's path, what its body holds, and the endpoint itself.
Endpoints = Mapping[str, tuple[type[BaseModel], Callable[[Any, ModelManager, Request], Awaitable[Response]]]]


class Shortcut:
    """POSTs to some paths, answered without the framework; all else is the framework's."""

    def __init__(self, framework: FastAPI, live: ModelManager, endpoints: Endpoints) -> None:
        self._framework, self._live, self._endpoints = framework, live, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._framework(scope, receive, send)
            return
        scope["app"] = self._framework
        model, endpoint = found
        request = Request(scope, receive)
        response: ASGIApp
        try:
            response = await endpoint(await _body(model, request), self._live, request)
        except (ServiceError, ProblemError) as error:
            response = problem_of(error)
        await response(scope, receive, send)


async def _body(model: type[BaseModel], request: Request) -> BaseModel:
    """What the request says.

    Raises:
        ProblemError: If it does not say that it is JSON, is none, or not what the endpoint takes.
    """
    media_type = Headers(scope=request.scope).get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise ProblemError(422, NOT_JSON)
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        raise invalid(error) from None
