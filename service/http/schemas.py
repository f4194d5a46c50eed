"""Requests and responses, as `/docs` shows them."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.bundle.manifest import MOST_KEYS, Counts, Defaults, EncoderInfo, Indexes

if TYPE_CHECKING:  # settings share these types, and `--help` must not load an encoder
    from service.predictor.predictor import Answer


def _has_words(query: str) -> str:
    """Refuse what is no text, or holds nothing but white space, control and format characters."""
    try:
        query.encode()
    except UnicodeEncodeError:
        raise ValueError("the query holds half of a surrogate pair, which is no character; remove it") from None
    if all(unicodedata.category(character) in ("Cc", "Cf", "Zs", "Zl", "Zp") for character in query):
        raise ValueError("the query is empty; send some words")
    return query


# What `/docs` can say of words: a character that is neither white space nor a control.
_WORDS = {"minLength": 1, "pattern": r"[^\s\x00-\x1f\x7f-\xa0]"}

Query = Annotated[
    str,
    AfterValidator(_has_words),
    Field(examples=["turn an object into a JSON string"], json_schema_extra=_WORDS),
]
Lambda = Annotated[float, Field(ge=0, le=1, description="weight of instances against labels; 1: instances alone")]
Temperature = Annotated[float, Field(ge=1e-4, le=100, description="tau of the softmax over the found keys")]
TopB = Annotated[int, Field(ge=1, le=MOST_KEYS, description="keys to retrieve")]
TopK = Annotated[int, Field(ge=1, le=1_000, description="labels to answer with, at most")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    top_k: TopK | None = None
    lambda_: Lambda | None = Field(None, alias="lambda")
    temperature: Temperature | None = None
    top_b: TopB | None = None
    allow: list[str] | None = Field(None, description="label uids; no other label is answered")
    deny: list[str] | None = Field(None, description="label uids that are not answered")
    threshold: float = Field(0.0, ge=0, le=1, description="labels that score less are not answered")
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
