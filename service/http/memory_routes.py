"""The routes that read and change the live memory. A change needs an API key with the scope `write`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import anyio
import numpy as np
import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field

from recollect.core.errors import ChangeError, StoreError
from recollect.core.options import BYTES_PER_UNIT, Query
from recollect.core.tables.entries import Entry, InstanceFields, Record
from recollect.core.tables.snapshot import Snapshot
from recollect.edits import changes
from recollect.edits.changes import (
    Encode,
    NewInstance,
    NewLabel,
    Uid,
)
from recollect.edits.live import Change
from recollect.edits.log import boot_seconds
from recollect.edits.writer import Request as KeyedRequest
from recollect.service.http.connection import require_waiting
from recollect.service.http.json_route import JsonRoute
from recollect.service.http.problems import ProblemError, documented
from recollect.service.serving.rate_limit import RateLimits
from recollect.service.serving.waiters import Waiters
from recollect.service.versions.open_versions import OpenVersions

log = structlog.get_logger(__name__)

MAX_ROWS = 1_000
# Maximum number of new keys of a change, with the labels that it creates.
_MAX_KEYS = 2 * MAX_ROWS
# Number of threads that change the memory, and maximum number of changes that use a thread or wait for one.
_THREADS, _MAX_WAITING = 8, 64

# Names a request that changes the memory, so that it is carried out once, even if it is sent several times.
KEY_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_KEY_PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "description": "a new random text for each request, such as a UUID: a request that is sent again with its key "
    "changes nothing and gets the first answer",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}


class InstancesBody(Record):
    """Instances to insert or replace. All of them are written, or none."""

    instances: Annotated[list[NewInstance], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]
    create_labels: bool = Field(
        False, description="whether to create labels that the memory lacks; the text of such a label is its uid"
    )


class LabelsBody(Record):
    """Labels to insert or replace. All of them are written, or none."""

    labels: Annotated[list[NewLabel], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]


class FeedbackBody(Record):
    """A user's judgement of a label for a query.

    A relevant label becomes the label of a new instance. The score of another label falls for queries like this one.
    """

    query: Query
    label: Uid
    relevant: bool


class Changed(BaseModel):
    """The memory after a change. A request with `min_sequence` of this number is answered with the change."""

    version: str
    sequence: int


class ChangedFeedback(Changed):
    """The memory after a feedback, and the id that undoes the feedback."""

    id: str


class MemoryStatus(Changed):
    """The size of the memory, and of its live entries.

    `live_keys` are those of instances, labels and corrections, also the keys that were replaced or removed;
    `live_bytes` is the memory that they take with their texts, in each worker, for each open version. `skipped` entries
    name a label that the version does not have. `oldest` is the time of the oldest entry that the bundle does not
    contain.
    """

    instances: int
    labels: int
    corrections: int
    live_keys: int
    max_live_keys: int
    live_bytes: int
    max_live_bytes: int
    skipped: int
    log_bytes: int
    oldest: datetime | None
    oldest_age_seconds: float | None
    writable: bool


class MemoryInstance(InstanceFields, Changed):
    """An instance of the memory."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    uid: str
    text: str
    labels: list[str]


@dataclass(frozen=True)
class MemoryRoutes:
    """The handlers of the paths `/memory` and `/feedback`.

    Changes that add keys are refused from `max_live_keys` or `max_live_bytes` on, which count the live entries. A
    change must be written within `max_seconds`.
    """

    versions: OpenVersions
    rate_limits: RateLimits
    writable: bool
    max_live_keys: int
    max_live_bytes: int
    max_seconds: float

    def register(self, router: APIRouter) -> None:
        for path, handler, response_model in (
            ("/memory/instances", self.put_instances, Changed),
            ("/memory/labels", self.put_labels, Changed),
            ("/feedback", self.feedback, ChangedFeedback),
        ):
            router.add_api_route(
                path,
                handler,
                methods=["POST"],
                response_model=response_model,
                responses=documented(401, 403, 413, 415, 422, 429, 503, 504, 507),
                route_class_override=JsonRoute,
                openapi_extra={"parameters": [_KEY_PARAMETER]},
            )
        for path, removal in (
            ("/memory/instances/{uid:path}", self.remove_instance),
            ("/memory/labels/{uid:path}", self.remove_label),
            ("/feedback/{uid}", self.forget),
        ):
            router.add_api_route(
                path,
                removal,
                methods=["DELETE"],
                responses=documented(401, 403, 404, 422, 429, 503, 504),
                openapi_extra={"parameters": [_KEY_PARAMETER]},
            )
        router.add_api_route("/memory", self.status, responses=documented(401, 503))
        router.add_api_route("/memory/instances/{uid:path}", self.instance, responses=documented(401, 404, 503))

    async def put_instances(self, body: InstancesBody, request: Request) -> Response:
        """Insert instances, or replace those with the same uids."""

        def make(memory: Snapshot, encode: Encode) -> list[Entry]:
            return changes.put(memory, encode, body.instances, [], body.create_labels)

        return JSONResponse(await self.apply(make, request, [each.text for each in body.instances]))

    async def put_labels(self, body: LabelsBody, request: Request) -> Response:
        """Insert labels, or replace those with the same uids. The next request is answered with them."""

        def make(memory: Snapshot, encode: Encode) -> list[Entry]:
            return changes.put(memory, encode, [], body.labels)

        return JSONResponse(await self.apply(make, request, [each.text for each in body.labels]))

    async def remove_instance(self, uid: str, request: Request) -> Changed:
        """Remove an instance."""
        return Changed(**await self.apply(lambda memory, _: changes.remove(memory, [uid], []), request))

    async def remove_label(self, uid: str, request: Request) -> Changed:
        """Remove a label and its votes. It is never answered again."""
        return Changed(**await self.apply(lambda memory, _: changes.remove(memory, [], [uid]), request))

    async def feedback(self, body: FeedbackBody, request: Request) -> Response:
        """Learn that a label is relevant to a query, or that it is not."""
        uid = changes.feedback_uid()

        def make(memory: Snapshot, encode: Encode) -> list[Entry]:
            return changes.feedback(memory, encode, uid, body.query, body.label, body.relevant)

        return JSONResponse(await self.apply(make, request, [body.query], id=uid))

    async def forget(self, uid: str, request: Request) -> Changed:
        """Undo a feedback."""
        return Changed(**await self.apply(lambda memory, _: changes.undo_feedback(memory, uid), request))

    def status(self) -> MemoryStatus:
        """Return the size of the memory, and of its live entries."""
        with self.versions.lease() as predictor:
            memory = predictor.memory.snapshot
            oldest = memory.oldest_seconds
            return MemoryStatus(
                version=predictor.version,
                sequence=memory.sequence,
                instances=memory.instances.present,
                labels=int(np.count_nonzero(memory.labels.present())),
                corrections=memory.corrections.rows.present,
                live_keys=memory.live_keys,
                max_live_keys=self.max_live_keys,
                live_bytes=memory.live_bytes,
                max_live_bytes=self.max_live_bytes,
                skipped=memory.skipped,
                log_bytes=0 if predictor.log is None else predictor.log.log.size_bytes,
                oldest=None if oldest is None else datetime.fromtimestamp(oldest, UTC),
                oldest_age_seconds=None if oldest is None else max(0.0, time.time() - oldest),
                writable=self.writable,
            )

    def instance(self, uid: str) -> MemoryInstance:
        """Return an instance of the memory: its text, labels and other fields."""
        with self.versions.lease() as predictor:
            memory = predictor.memory.snapshot
            number = memory.instance(uid)
            if number is None:
                raise ProblemError(404, f"instance {uid[:80]!r} is not in the memory", "unknown_instance")
            return MemoryInstance(
                version=predictor.version,
                sequence=memory.sequence,
                uid=uid,
                text=memory.instances.texts[number],
                labels=memory.labels_of(number),
                **dict(memory.fields_of(number)),
            )

    async def apply(self, make: Change, request: Request, texts: Sequence[str] = (), **answer: str) -> dict[str, Any]:
        """Change the memory for a request that may do so. A request with a key is carried out once.

        The new texts count towards the rate limit. Return the fields of the answer, with the version and the sequence
        number.

        Raises:
            ProblemError: If the request may not change the memory, or its key is malformed.
            RepeatedKeyError: If another request had its key.
            OverloadError: If too many changes wait.
            ClientGoneError: If the client disconnects before the change is written.
        """
        self.require_write(request)
        deadline, key = boot_seconds() + self.max_seconds, await _key_of(request)
        cost = max(1, sum(-(-len(text.encode()) // BYTES_PER_UNIT) for text in texts))
        await self.rate_limits.charge(request.scope["api_key"], cost, request.scope.get("paid", 0))

        def make_in_time(memory: Snapshot, encode: Encode) -> list[Entry]:
            """Make the entries, if the client waits. It is called again right before the change is written."""
            if boot_seconds() > deadline:  # the end of a connection can be lost
                raise ProblemError(
                    504, f"the change was not written within {self.max_seconds:g} s; send fewer texts at once"
                )
            require_waiting(request)

            def encode_few(queries: Sequence[str], labels: Sequence[str]) -> Float[np.ndarray, "text dim"]:
                self._require_room(memory, len(queries) + len(labels))
                return encode(queries, labels)

            return make(memory, encode_few)

        with self._waiters.one_more():
            return await anyio.to_thread.run_sync(self._write, make_in_time, key, answer, limiter=self._threads)

    @functools.cached_property
    def _waiters(self) -> Waiters:
        return Waiters(_MAX_WAITING, "a change of the memory")

    @functools.cached_property
    def _threads(self) -> anyio.CapacityLimiter:
        """Threads of their own, so that a large change does not delay other requests.

        Several threads, because the log writes changes that wait at the same time as one group.
        """
        return anyio.CapacityLimiter(_THREADS)

    def _write(self, make: Change, key: tuple[str, str] | None, answer: dict[str, str]) -> dict[str, Any]:
        with self.versions.lease() as predictor:
            answer = {"version": predictor.version, **answer}
            try:
                written = predictor.change(make, None if key is None else KeyedRequest(*key, answer))
            except (StoreError, OSError) as error:
                log.error("memory_unwritable", error=str(error))
                raise
            for lease in self.versions.lease_open(standby=False):
                with lease as other, contextlib.suppress(StoreError, OSError):  # the log follower logs the reason
                    if other is not predictor:  # the candidate, or a version that became current meanwhile
                        other.catch_up()
        return {**(answer if key is None else written.answer), "sequence": written.sequence}

    def _require_room(self, memory: Snapshot, keys: int) -> None:
        """Refuse new keys that are too many, or for which there is no room, before their texts are encoded."""
        if keys > _MAX_KEYS:
            raise ChangeError(
                f"labels: expected at most {_MAX_KEYS:,} new instances and labels in a call, found {keys:,}; add the "
                "labels first, in several calls"
            )
        if (live := memory.live_keys) + keys > self.max_live_keys:
            raise ProblemError(
                507,
                f"the memory has {live:,} live keys, {keys:,} more are needed, and --delta-keys allows "
                f"{self.max_live_keys:,}; run `recollect compact`",
                "memory_full",
            )
        if (size := memory.live_bytes) >= self.max_live_bytes:
            raise ProblemError(
                507,
                f"the live entries take {size / (1 << 20):,.1f} MB of memory, and --delta-mb allows "
                f"{self.max_live_bytes >> 20:,}; run `recollect compact`",
                "memory_full",
            )

    def require_write(self, request: Request) -> None:
        """Refuse a request that may not change the memory."""
        if not self.writable:
            raise ProblemError(403, "the memory is read-only; start the service with --writable", "read_only")
        key = request.scope.get("api_key")
        if key is None or not key.writes:
            raise ProblemError(
                403, "expected an API key with the scope `write`, found one without it", "no_write_scope"
            )


async def _key_of(request: Request) -> tuple[str, str] | None:
    """The digests of the key of a request and of the request itself; None if it has no key.

    The clients of two API keys may choose the same key.

    Raises:
        ProblemError: If the key is empty, too long, or has other characters.
    """
    key = request.headers.get(KEY_HEADER)
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise ProblemError(
            422, f"{KEY_HEADER}: expected 1 to 200 visible ASCII characters, found {key[:40]!r}; send a UUID"
        )
    request_line = f"{request.method} {request.url.path}\n".encode()
    body = hashlib.sha256(request_line + await request.body()).hexdigest()
    return hashlib.sha256(f"{request.scope['api_key'].name}\n{key}".encode()).hexdigest(), body
