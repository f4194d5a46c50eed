"""Requests and responses, as `/docs` shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from service.bundle.manifest import Counts, Defaults, EncoderInfo, Indexes
from service.options import Lambda, Query, Temperature, Threshold, TopB, TopK
from service.predictor.predictor import Answer


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    top_k: TopK | None = None
    lambda_: Lambda | None = Field(None, alias="lambda")
    temperature: Temperature | None = None
    top_b: TopB | None = None
    allow: list[str] | None = Field(None, description="label uids; no other label is answered")
    deny: list[str] | None = Field(None, description="label uids that are not answered")
    threshold: Threshold = 0.0
    explain: bool = Field(False, description="list the terms of each score")
    timeout_ms: int | None = Field(None, ge=1, le=600_000, description="answer within, or 504")


class PredictRequest(_Request):
    """One query. Only `query` is required; the bundle has defaults for the rest."""

    query: Query


class PredictBatchRequest(_Request):
    """Several queries with the same options, all answered by one version."""

    queries: list[Query] = Field(min_length=1)


class _Response(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class _Versioned(_Response):
    version: str = Field(description="the bundle that answered")


class Reason(_Response):
    """One term of a score: `share` is the key's weight times lambda (instance) or 1 - lambda (label)."""

    kind: str
    uid: str
    text: str
    share: float


class ScoredLabel(_Response):
    uid: str
    text: str
    score: float
    because: list[Reason] | None = None


class Result(_Response):
    """Labels in falling score; `truncated` if the query was cut, `exhausted` if a filter admits no more."""

    labels: list[ScoredLabel]
    truncated: bool | None = None
    exhausted: bool | None = None

    @classmethod
    def of(cls, answer: Answer) -> Result:
        labels = [ScoredLabel.model_validate(label) for label in answer.labels]
        return cls(labels=labels, truncated=answer.truncated or None, exhausted=answer.exhausted or None)


class PredictResponse(Result, _Versioned):
    """The answer to one query."""


class PredictBatchResponse(_Versioned):
    """The answers to several queries, in their order."""

    results: list[Result]


class LabelResponse(_Versioned):
    """A label, and how many training instances have it."""

    uid: str
    text: str
    training_count: int


class VersionResponse(_Versioned):
    """What is served, and since when."""

    created: datetime
    since: datetime
    counts: Counts
    dim: int
    encoder: EncoderInfo
    index: Indexes
    defaults: Defaults
    metrics: dict[str, float]


class Health(_Response):
    status: str
    degraded: list[str] | None = Field(None, description="what the service does without, and why")


class Problem(_Response):
    """An error, as RFC 9457 has it; `code` is stable, `errors` names the fields at fault."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[dict[str, str]] | None = None
