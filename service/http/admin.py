"""The operators' own interface, on a port of its own: versions, switching them, every replica, the settings.

Off loopback it needs a token. On loopback it needs none, so it answers only who names it by a loopback name and sends
JSON: a page in a browser on the same machine can be made to do neither.
"""

from __future__ import annotations

import hmac
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.addresses import is_loopback
from service.errors import (
    BundleError,
    NotServedError,
    RedisError,
    ServiceError,
    StoreError,
    UnknownVersionError,
)
from service.http import problems
from service.http.auth import bearer_of
from service.http.middleware import BodyLimit, RequestContext
from service.http.problems import NOT_JSON, problem_response
from service.settings import ServeSettings
from service.store.store import Store
from service.versions.activation import Activation
from service.versions.model_manager import ModelManager
from service.versions.replicas import Report

_MOST_BODY_BYTES = 1 << 16

router = APIRouter(prefix="/admin")


class SwitchRequest(BaseModel):
    """`wait_seconds`: how long to wait until every replica serves the version; 0: not at all."""

    model_config = ConfigDict(extra="forbid")

    wait_seconds: float = Field(0.0, ge=0, le=3600)


class ActivateRequest(SwitchRequest):
    version: str


class VersionRow(BaseModel):
    version: str
    current: bool
    created: datetime | None = None
    size_bytes: int | None = None
    problem: str | None = None


class Versions(BaseModel):
    """All versions of the store, the latest last."""

    current: str | None
    versions: list[VersionRow]
    problem: str | None = Field(None, description="why it cannot be told which is current")


class Switched(BaseModel):
    """The version that is current now; `replicas` say what they serve, where they were waited for."""

    version: str
    replicas: list[Report] | None = None


class Status(BaseModel):
    """What is current, and what every replica serves."""

    current: str | None
    replicas: list[Report]
    problem: str | None = None


async def _activation(request: Request) -> Activation:
    activation: Activation = request.app.state.activation
    return activation


ActivationDependency = Annotated[Activation, Depends(_activation)]


@router.get("/versions")
def versions(request: Request) -> Versions:
    """What `recollect versions` lists."""
    store: Store = request.app.state.store
    current, problem = _current(store)
    rows = [_row(store, version, current) for version in store.versions()]
    return Versions(current=current, versions=rows, problem=problem)


@router.post("/activate")
def activate(body: ActivateRequest, activation: ActivationDependency) -> Switched:
    """Make a version current."""
    activation.activate(body.version)
    return _switched(activation, body.version, body.wait_seconds)


@router.post("/rollback")
def rollback(body: SwitchRequest, activation: ActivationDependency) -> Switched:
    """Return to the version that was current before."""
    return _switched(activation, activation.rollback(), body.wait_seconds)


@router.get("/status")
def status(request: Request, activation: ActivationDependency) -> Status:
    """What every replica serves."""
    current, problem = _current(request.app.state.store)
    return Status(current=current, replicas=activation.replicas.reports(), problem=problem)


@router.get("/settings")
def settings(request: Request) -> dict[str, Any]:
    """The effective settings, without secrets."""
    effective: ServeSettings = request.app.state.settings
    store: Store = request.app.state.store
    return effective.model_dump(mode="json") | {"store": store.name}  # a URL may hold a password


def create_admin(store: Store, activation: Activation, settings: ServeSettings, live: ModelManager) -> ASGIApp:
    """The interface to a store, whose replicas `activation` knows; `live` is this process's own."""
    app = FastAPI(title="Recollect, for operators", docs_url=None, redoc_url=None)
    app.state.store, app.state.activation, app.state.settings = store, activation, settings
    app.include_router(router)
    problems.install(app)

    @app.exception_handler(ServiceError)
    async def on_service_error(request: Request, error: ServiceError) -> Any:
        status, code = _PROBLEMS.get(type(error), (500, None))
        return problem_response(status, str(error), code)

    guarded = Guard(BodyLimit(app, _MOST_BODY_BYTES), settings.admin_token)
    return RequestContext(guarded, live, None, settings.access_log)


_PROBLEMS: dict[type[ServiceError], tuple[int, str]] = {
    UnknownVersionError: (404, "unknown_version"),
    StoreError: (503, "store_unreadable"),
    BundleError: (409, "broken_bundle"),
    NotServedError: (504, "not_served"),
    RedisError: (503, "redis_down"),
}


class Guard:
    """Answers 401 to who lacks the token; without one, 403 to who may be a web page."""

    def __init__(self, app: ASGIApp, token: SecretStr | None) -> None:
        self._app = app
        self._token = token.get_secret_value().encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if self._token is not None:
            if hmac.compare_digest((bearer_of(headers) or "").encode(), self._token):
                return None
            return problem_response(401, "expected `Authorization: Bearer TOKEN`, found none that is right")
        if not is_loopback(_host_name(headers.get("host", ""))):
            return problem_response(
                403, "without a token, /admin is asked as localhost; set --admin-token for any other name"
            )
        if scope["method"] != "GET" and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return problem_response(422, NOT_JSON)
        return None


def _host_name(header: str) -> str:
    return header.rpartition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]


def _current(store: Store) -> tuple[str | None, str | None]:
    """The current version, and why it cannot be told."""
    try:
        return store.current(), None
    except StoreError as error:
        return None, str(error)


def _row(store: Store, version: str, current: str | None) -> VersionRow:
    try:
        manifest = store.manifest(version)
    except (BundleError, StoreError) as error:
        return VersionRow(version=version, current=version == current, problem=str(error))
    return VersionRow(
        version=version, current=version == current, created=manifest.created, size_bytes=manifest.size_bytes
    )


def _switched(activation: Activation, version: str, wait_seconds: float) -> Switched:
    return Switched(version=version, replicas=activation.wait(version, wait_seconds) if wait_seconds else None)
