"""The routes of labels: one label by its uid, and a search among all labels."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator

from recollect.core.bundle.label_fields import Language, name_of
from recollect.core.tables.tables import Labels
from recollect.core.texts import require_words
from recollect.core.words.text_search import MAX_CHARACTERS
from recollect.service.http.problems import ProblemError, documented
from recollect.service.http.schemas import KnownLabel, LabelResponse, LabelsResponse
from recollect.service.serving.rate_limit import RateLimits
from recollect.service.serving.waiters import Waiters
from recollect.service.versions.open_versions import OpenVersions

_MAX_FOUND = 100
# Maximum number of searches that run or wait.
_MAX_WAITING = 64


_Search = Annotated[
    str,
    Query(
        min_length=1,
        max_length=MAX_CHARACTERS,
        description="beginning of a uid, or beginning or part of a text or a name in any language; upper and lower "
        "case are equal in texts",
    ),
    AfterValidator(functools.partial(require_words, kind="search text")),
]
_Limit = Annotated[int, Query(ge=1, le=_MAX_FOUND, description="maximum number of labels to return")]
_NameLanguage = Annotated[Language | None, Query(description="language of the names, such as de")]


@dataclass(frozen=True)
class LabelRoutes:
    """The handlers of the paths `/labels` and `/labels/{uid}`."""

    versions: OpenVersions
    rate_limits: RateLimits
    max_seconds: float
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _waiters: Waiters = field(default_factory=lambda: Waiters(_MAX_WAITING, "a search of the labels"), init=False)

    def register(self, router: APIRouter) -> None:
        router.add_api_route("/labels", self.search, responses=documented(401, 422, 429, 503, 504))
        router.add_api_route(
            "/labels/{uid:path}",
            self.label,
            responses=documented(401, 404, 503),
            response_model_exclude_unset=True,  # without the fields that the label lacks
        )

    async def search(
        self,
        request: Request,
        response: Response,
        search: _Search,
        limit: _Limit = 10,
        language: _NameLanguage = None,
    ) -> LabelsResponse:
        """Find labels whose texts, names or uids begin with a search text, contain it, or are similar to it."""
        await self.rate_limits.charge(request.scope.get("api_key"), 1)
        # One search at a time: a search reads all labels, and the other cores must stay free for queries.
        with self._waiters.one_more():
            try:
                await asyncio.wait_for(self._turn.acquire(), self.max_seconds)
            except TimeoutError:
                raise ProblemError(504, f"search: waited longer than {self.max_seconds:g} s; retry later") from None
            try:
                labels = await asyncio.to_thread(self._search, search, limit, language)
            finally:
                self._turn.release()
        response.headers["X-Index-Version"] = labels.version
        return labels

    def _search(self, text: str, limit: int, language: str | None) -> LabelsResponse:
        with self.versions.lease() as predictor:
            memory = predictor.memory
            positions = predictor.label_search.find(memory.labels, text, limit)
            labels = [KnownLabel(**_known(memory.labels, position, language)) for position in positions]
            return LabelsResponse(version=predictor.version, sequence=memory.sequence, labels=labels)

    async def label(self, uid: str, response: Response, language: _NameLanguage = None) -> LabelResponse:
        """Return a label's name, text and fields, and the number of training instances with this label."""
        with self.versions.lease() as predictor:
            labels, version = predictor.memory.labels, predictor.version
            position = labels.position(uid)
            if position is None:
                raise ProblemError(404, f"label {uid[:80]!r} is unknown to version {version}", "unknown_label")
            response.headers["X-Index-Version"] = version
            known = {"version": version, **_known(labels, position, language)}
            return LabelResponse(**{**labels.fields_of(position), **known})


def _known(labels: Labels, position: int, language: str | None) -> dict[str, Any]:
    text = labels.texts[position]
    return {
        "uid": labels.uids[position],
        "name": name_of(labels.fields_of(position), text, language),
        "text": text,
        "training_count": int(labels.counts[position]),
    }
