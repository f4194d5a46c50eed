"""The admin interface, on a port of its own: versions, activation, rollback, reports of replicas, settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from recollect.service.errors import BundleError, StoreError
from recollect.service.http import problems
from recollect.service.http.admin_guard import AdminGuard
from recollect.service.http.middleware import BodyLimit, HeadAsGet, RequestContext
from recollect.service.http.problems import ProblemError
from recollect.service.reloaded_file import ReloadedFile
from recollect.service.serve_settings import ServeSettings
from recollect.service.store.activation_record import ActivationRecord, Canary, canary_of
from recollect.service.store.audit_log import LogEntry
from recollect.service.store.store import Store
from recollect.service.versions.activation import Activation
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.replicas import reports
from recollect.service.versions.reports import Report

_MAX_BODY_BYTES = 1 << 16


class SwitchRequest(BaseModel):
    """Body of an activation or a rollback.

    `wait_seconds` is the maximum time to wait until every replica serves the version; 0 does not wait. `replicas` is
    the number of replicas to wait for. `by` and `why` are the user and the reason, for the log.
    """

    model_config = ConfigDict(extra="forbid")

    wait_seconds: float = Field(0.0, ge=0, le=3600)
    replicas: int | None = Field(None, ge=1)
    by: str | None = Field(None, min_length=1, max_length=200)
    why: str = Field("", max_length=1000)


class ActivateRequest(SwitchRequest):
    """Body of an activation. With `canary` or `shadow`, the version is only tried on a share of the requests."""

    version: str
    canary: float | None = Field(None, gt=0, le=1, allow_inf_nan=False, description="share of the requests")
    shadow: bool = False


class PromoteRequest(SwitchRequest):
    """Body of a promotion. `force` promotes even a canary that a replica stopped or refused."""

    force: bool = False


class VersionRow(BaseModel):
    version: str
    current: bool
    created: datetime | None = None
    size_bytes: int | None = None
    problem: str | None = None


class Versions(BaseModel):
    """All versions of the store, oldest first."""

    current: str | None
    generation: int | None
    canary: Canary | None
    versions: list[VersionRow]
    problem: str | None = Field(None, description="the reason why the current version is not known")


class Switched(BaseModel):
    """The current version after an activation or a rollback.

    `replicas` contains the reports of the replicas, if the request waited for the replicas.
    """

    version: str
    generation: int
    canary: Canary | None = None
    replicas: list[Report] | None = None


class Status(BaseModel):
    """The current version, the canary, and the version that each replica serves."""

    current: str | None
    generation: int | None
    canary: Canary | None
    replicas: list[Report]
    problem: str | None = None


class Log(BaseModel):
    """All activations and rollbacks, the newest last."""

    log: list[LogEntry]


@dataclass(frozen=True)
class AdminRoutes:
    """The handlers of the admin routes, and the objects that the handlers use."""

    store: Store
    activation: Activation
    effective_settings: ServeSettings

    def register(self, app: FastAPI) -> None:
        app.add_api_route("/admin/versions", self.versions)
        app.add_api_route("/admin/activate", self.activate, methods=["POST"])
        app.add_api_route("/admin/promote", self.promote, methods=["POST"])
        app.add_api_route("/admin/rollback", self.rollback, methods=["POST"])
        app.add_api_route("/admin/log", self.log)
        app.add_api_route("/admin/status", self.status)
        app.add_api_route("/admin/settings", self.settings)

    def versions(self) -> Versions:
        """List the same versions as `recollect versions`."""
        record, problem = self._record()
        current, generation = (record.version, record.generation) if record else (None, None)
        rows = [self._row(version, current) for version in self.store.versions()]
        canary = record.canary if record else None
        return Versions(current=current, generation=generation, canary=canary, versions=rows, problem=problem)

    def activate(self, body: ActivateRequest, request: Request) -> Switched:
        """Make a version current, or try it on a share of the requests."""
        self._require_unsigned(f"recollect activate {body.version} --sign PRIVATE")
        by = _author(body, request)
        if body.canary is None and not body.shadow:
            return self._wait(self.activation.activate(body.version, by, body.why), body)
        canary = canary_of(body.version, body.canary, body.shadow)
        return self._wait(self.activation.start_canary(canary, by, body.why), body)

    def promote(self, body: PromoteRequest, request: Request) -> Switched:
        """Make the canary current."""
        self._require_unsigned("recollect promote --sign PRIVATE")
        return self._wait(self.activation.promote(_author(body, request), body.why, body.force), body)

    def rollback(self, body: SwitchRequest, request: Request) -> Switched:
        """Remove the canary; without a canary, make the previous current version current again."""
        self._require_unsigned("recollect rollback --sign PRIVATE")
        return self._wait(self.activation.rollback(_author(body, request), body.why), body)

    def log(self) -> Log:
        """List all activations and rollbacks."""
        return Log(log=self.store.log())

    def status(self) -> Status:
        """List the version that each replica serves."""
        record, problem = self._record()
        current, generation = (record.version, record.generation) if record else (None, None)
        found = reports(self.activation.replicas)
        canary = record.canary if record else None
        return Status(current=current, generation=generation, canary=canary, replicas=found, problem=problem)

    def settings(self) -> dict[str, Any]:
        """List the effective settings, without secrets."""
        shown = self.effective_settings.model_dump(mode="json")
        return shown | {"store": self.store.name}  # the store's URL may contain a password

    def _require_unsigned(self, command: str) -> None:
        """Refuse a change if replicas would refuse it: the service has no private key, so it cannot sign."""
        if self.effective_settings.verify_activations:
            raise ProblemError(
                409,
                "--verify-activations: expected a signed activation, which this interface cannot write; "
                f"run `{command}`",
                "signature_required",
            )

    def _record(self) -> tuple[ActivationRecord | None, str | None]:
        """The activation record, or None with the reason why it cannot be read."""
        try:
            return self.store.activation(), None
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

    def _wait(self, record: ActivationRecord, body: SwitchRequest) -> Switched:
        found = self.activation.wait(record, body.wait_seconds, body.replicas) if body.wait_seconds else None
        return Switched(version=record.version, generation=record.generation, canary=record.canary, replicas=found)


def create_admin(
    store: Store,
    activation: Activation,
    settings: ServeSettings,
    versions: OpenVersions,
    token_file: ReloadedFile[SecretStr] | None = None,
) -> ASGIApp:
    """Compose the admin application of this replica. `token_file` replaces the token in the settings."""
    layers = [
        Middleware(RequestContext, versions, None, settings.access_log),
        Middleware(AdminGuard, lambda: token_file.content if token_file else settings.admin_token),
        Middleware(BodyLimit, _MAX_BODY_BYTES),
        Middleware(HeadAsGet),
    ]
    app = FastAPI(title="Recollect, for operators", docs_url=None, redoc_url=None, middleware=layers)
    AdminRoutes(store, activation, settings).register(app)
    problems.install(app)
    return app


def _author(body: SwitchRequest, request: Request) -> str:
    """The user for the log: the name in the request, and the address of the client."""
    client = f"admin API, {request.client.host if request.client else 'unknown client'}"
    return f"{body.by} ({client})" if body.by else client
