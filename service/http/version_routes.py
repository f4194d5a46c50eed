"""The routes that list the versions of the store and change what replicas serve, for API keys with `operate`.

An activation writes the same record as `recollect activate` does, so all replicas of the store follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from recollect.core.errors import BundleError, RedisError, StoreError
from recollect.service.http.api_keys import ApiKey
from recollect.service.http.connection import require_waiting
from recollect.service.http.problems import ProblemError, documented
from recollect.service.versions.reports import Report, Reports
from recollect.store.activations import ActivationRecord
from recollect.store.store import Store

Why = Annotated[str, Query(max_length=1000, description="reason, for the log")]


class VersionRow(BaseModel):
    """A version of the store; `problem` is the reason why it cannot be read."""

    version: str
    created: datetime | None = None
    size_bytes: int | None = None
    problem: str | None = None


class Activated(BaseModel):
    """The versions that replicas must open, and the number of activations and rollbacks of the store so far."""

    current: str | None = None
    candidate: str | None = None
    generation: int | None = None


class Versions(Activated):
    """The versions of the store, oldest first, and the reports of its replicas."""

    versions: list[VersionRow]
    replicas: list[Report]
    problem: str | None = Field(None, description="the reason why the current version or the reports are not known")


@dataclass(frozen=True)
class VersionRoutes:
    """The handlers of the paths `/versions`. They are not async: on a thread, because a store can be slow."""

    store: Store
    reports: Reports

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/versions", self.versions, responses=documented(401, 403, 503))
        changes = documented(401, 403, 404, 409, 422, 503)
        router.add_api_route("/versions/rollback", self.rollback, methods=["POST"], responses=changes)
        router.add_api_route("/versions/{version}/activate", self.activate, methods=["POST"], responses=changes)

    def versions(self, request: Request) -> Versions:
        """List the versions of the store, and the versions that each replica has open."""
        _require_operator(request)
        problem, record, replicas = None, None, list[Report]()
        try:
            record = self.store.activation()
            replicas = self.reports.read()
        except (StoreError, RedisError, OSError) as error:
            problem = str(error)
        rows = [self._row(version) for version in self.store.versions()]
        return Versions(**_facts(record), versions=rows, replicas=replicas, problem=problem)

    def activate(self, version: str, request: Request, candidate: bool = False, why: Why = "") -> Activated:
        """Make a version current, or let replicas open it beside the current version as the candidate."""
        by = _require_operator(request)
        require_waiting(request)
        return Activated(**_facts(self.store.activate(version, candidate, by, why)))

    def rollback(self, request: Request, why: Why = "") -> Activated:
        """Remove the candidate; without a candidate, make the previous version current again."""
        by = _require_operator(request)
        require_waiting(request)
        return Activated(**_facts(self.store.rollback(by, why)))

    def _row(self, version: str) -> VersionRow:
        try:
            manifest = self.store.manifest(version)
        except (BundleError, StoreError) as error:
            return VersionRow(version=version, problem=str(error))
        return VersionRow(version=version, created=manifest.created, size_bytes=manifest.size_bytes)


def _facts(record: ActivationRecord | None) -> dict[str, object]:
    if record is None:
        return {}
    return {"current": record.version, "candidate": record.candidate, "generation": record.generation}


def _require_operator(request: Request) -> str:
    """Refuse a key without the scope `operate`. Return the author for the log."""
    key: ApiKey = request.scope["api_key"]
    if not key.operates:
        raise ProblemError(
            403, "expected an API key with the scope `operate`, found one without it", "no_operate_scope"
        )
    return f"{key.name} (API key)"
