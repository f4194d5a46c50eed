"""The admin interface, on a port of its own: versions, activation, rollback, reports of replicas, settings.

If the admin interface listens on an address other than loopback, it requires a token. On a loopback address it requires
no token. Without a token it accepts only requests with a loopback host name and a JSON body, so that a web page in a
browser on the same machine cannot use it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.addresses import is_loopback
from service.errors import BundleError, StoreError
from service.http import problems
from service.http.middleware import BodyLimit, HeadAsGet, RequestContext, bearer_token
from service.http.problems import NOT_JSON, problem_response
from service.settings import ServeSettings
from service.store.store import Store
from service.versions.activation import Activation
from service.versions.model_manager import ModelManager
from service.versions.replicas import Report

_MAX_BODY_BYTES = 1 << 16


class SwitchRequest(BaseModel):
    """Body of an activation or a rollback.

    `wait_seconds` is the maximum time to wait until every replica serves the version; 0 does not wait.
    """

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
    """All versions of the store, oldest first."""

    current: str | None
    versions: list[VersionRow]
    problem: str | None = Field(None, description="the reason why the current version is not known")


class Switched(BaseModel):
    """The current version after an activation or a rollback.

    `replicas` contains the reports of the replicas, if the request waited for the replicas.
    """

    version: str
    replicas: list[Report] | None = None


class Status(BaseModel):
    """The current version, and the version that each replica serves."""

    current: str | None
    replicas: list[Report]
    problem: str | None = None


@dataclass(frozen=True)
class AdminRoutes:
    """The handlers of the admin routes, and the objects that the handlers use."""

    store: Store
    activation: Activation
    effective_settings: ServeSettings

    def register(self, app: FastAPI) -> None:
        app.add_api_route("/admin/versions", self.versions)
        app.add_api_route("/admin/activate", self.activate, methods=["POST"])
        app.add_api_route("/admin/rollback", self.rollback, methods=["POST"])
        app.add_api_route("/admin/status", self.status)
        app.add_api_route("/admin/settings", self.settings)

    def versions(self) -> Versions:
        """List the same versions as `recollect versions`."""
        current, problem = self._current()
        rows = [self._row(version, current) for version in self.store.versions()]
        return Versions(current=current, versions=rows, problem=problem)

    def activate(self, body: ActivateRequest) -> Switched:
        """Make a version current."""
        self.activation.activate(body.version)
        return self._wait(body.version, body.wait_seconds)

    def rollback(self, body: SwitchRequest) -> Switched:
        """Make the previous current version current again."""
        return self._wait(self.activation.rollback(), body.wait_seconds)

    def status(self) -> Status:
        """List the version that each replica serves."""
        current, problem = self._current()
        return Status(current=current, replicas=self.activation.replicas.reports(), problem=problem)

    def settings(self) -> dict[str, Any]:
        """List the effective settings, without secrets."""
        shown = self.effective_settings.model_dump(mode="json")
        return shown | {"store": self.store.name}  # the store's URL may contain a password

    def _current(self) -> tuple[str | None, str | None]:
        """The current version, or None with the reason why it is not known."""
        try:
            return self.store.current(), None
        except StoreError as error:
            return None, str(error)

    def _row(self, version: str, current: str | None) -> VersionRow:
        try:
            manifest = self.store.manifest(version)
        except (BundleError, StoreError) as error:
            return VersionRow(version=version, current=version == current, problem=str(error))
        return VersionRow(
            version=version, current=version == current, created=manifest.created, size_bytes=manifest.size_bytes
        )

    def _wait(self, version: str, wait_seconds: float) -> Switched:
        return Switched(version=version, replicas=self.activation.wait(version, wait_seconds) if wait_seconds else None)


def create_admin(store: Store, activation: Activation, settings: ServeSettings, model_manager: ModelManager) -> ASGIApp:
    """Compose the admin application of this replica."""
    layers = [
        Middleware(RequestContext, model_manager, None, settings.access_log),
        Middleware(AdminGuard, settings.admin_token),
        Middleware(BodyLimit, _MAX_BODY_BYTES),
        Middleware(HeadAsGet),
    ]
    app = FastAPI(title="Recollect, for operators", docs_url=None, redoc_url=None, middleware=layers)
    AdminRoutes(store, activation, settings).register(app)
    problems.install(app)
    return app


class AdminGuard:
    """Answers 401 to a request without the right token.

    If no token is set, answers 403 to a request that a web page could send.
    """

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
            if hmac.compare_digest((bearer_token(headers) or "").encode(), self._token):
                return None
            return problem_response(401, "expected `Authorization: Bearer TOKEN` with the admin token, found none")
        if not is_loopback(_host_name(headers.get("host", ""))):
            return problem_response(
                403, "without a token, the host of /admin must be localhost; set --admin-token to use another name"
            )
        media_type = headers.get("content-type", "").partition(";")[0].strip()
        if scope["method"] not in ("GET", "HEAD") and media_type != "application/json":
            return problem_response(422, NOT_JSON)
        return None


def _host_name(header: str) -> str:
    return header.rpartition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]
