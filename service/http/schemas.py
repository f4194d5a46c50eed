"""The JSON of requests and responses. `/docs` shows these models; requests are validated with them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from service.bundle.manifest import Counts, Defaults, EncoderInfo, Indexes
from service.options import Lambda, Query, Temperature, Threshold, TopB, TopK


class AnswerBody(BaseModel):
    """The fields that both kinds of requests have."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    top_k: TopK | None = None
    lambda_: Lambda | None = Field(None, alias="lambda")
    temperature: Temperature | None = None
    top_b: TopB | None = None
    allow: list[str] | None = Field(None, description="uids of the only labels to return")
    deny: list[str] | None = Field(None, description="uids of labels not to return")
    threshold: Threshold = 0.0
    explain: bool = Field(False, description="list the terms of each score")
    timeout_ms: int | None = Field(None, ge=1, le=600_000, description="deadline in milliseconds; after it, 504")


class PredictRequest(AnswerBody):
    """One query. Only `query` is required; the bundle has defaults for the rest."""

    query: Query


class PredictBatchRequest(AnswerBody):
    """Several queries with the same options. One version answers all of them."""

    queries: list[Query] = Field(min_length=1)


class _Versioned(BaseModel):
    version: str = Field(description="the version that answered")


class Reason(BaseModel):
    """One term of a score: `share` is the key's weight times lambda (instance) or 1 - lambda (label)."""

    kind: str
    uid: str
    text: str
    share: float


class ScoredLabel(BaseModel):
    uid: str
    text: str
    score: float
    because: list[Reason] | None = None


class Result(BaseModel):
    """Labels in falling score. `truncated`: the query was cut. `exhausted`: the filter admits no more labels."""

    labels: list[ScoredLabel]
    truncated: bool | None = None
    exhausted: bool | None = None


class PredictResponse(Result, _Versioned):
    """The answer to one query."""


class PredictBatchResponse(_Versioned):
    """The answers to several queries, in the order of the queries."""

    results: list[Result]


class LabelResponse(_Versioned):
    """A label, and the number of training instances that have it."""

    uid: str
    text: str
    training_count: int


class VersionResponse(_Versioned):
    """The version that serves, and since when it serves."""

    created: datetime
    since: datetime
    counts: Counts
    dim: int
    encoder: EncoderInfo
    index: Indexes
    defaults: Defaults
    metrics: dict[str, float]


class Health(BaseModel):
    status: str
    degraded: list[str] | None = Field(None, description="parts that do not work, with the reason")


class Problem(BaseModel):
    """An error (RFC 9457). `code` is stable; `errors` names the fields that are wrong."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[dict[str, str]] | None = None
