"""The JSON format of requests and responses. `/docs` documents these models, and requests are validated with them."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from recollect.core import answers
from recollect.core.bundle.label_fields import LabelFields
from recollect.core.bundle.manifest import Counts, Defaults, EncoderInfo, Indexes, Probabilities
from recollect.core.options import ChosenOptions, Query
from recollect.service.settings import MAX_BATCH


class AnswerBody(ChosenOptions):
    """The fields of both request types: one query and several queries."""

    min_sequence: int = Field(
        0,
        ge=0,
        description="Sequence number of a change of the memory that the answer must know; a replica that does not "
        "learn of the change in 2 seconds answers 409",
    )
    timeout_ms: int | None = Field(
        None,
        ge=1,
        le=600_000,
        description="Time limit in milliseconds, at most the limit of the service; a request that takes longer gets "
        "status 504",
    )


# The version has the dimension, which is checked later.
Vector = Annotated[list[float], Field(min_length=1, max_length=65_536, fail_fast=True)]
_VECTOR = (
    "in place of a text, its vector: as many finite numbers as the `dim` of the version, in the space of its keys, as "
    "its encoder gives them with its adapter"
)


# The type of the error that not exactly one of some fields is given. Its context names the first of them.
ONE_OF = "one_of"


def _one_of(*names: str) -> ConfigDict:
    """The part of JSON Schema for models of which exactly one of some fields is required."""
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in names]})


def _require_one_of(body: BaseModel, *names: str) -> None:
    if len(found := body.model_fields_set & {*names}) != 1:
        message = f"expected {' or '.join(names)}, found {'both' if found else 'neither'}"
        raise PydanticCustomError(ONE_OF, "{message}", {"message": message, "field": names[0]})


class PredictRequest(AnswerBody):
    """A request with one query. Only `query` or `vector` is required; the bundle has defaults for the other fields."""

    model_config = _one_of("query", "vector")

    query: Query = Field(default_factory=str)
    vector: Vector = Field(default_factory=list, description=_VECTOR)

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        _require_one_of(self, "query", "vector")
        return self


class PredictBatchRequest(AnswerBody):
    """A request with several queries, which have the same options. One version answers all queries of the request."""

    model_config = _one_of("queries", "vectors")

    queries: list[Query] = Field(default_factory=list, min_length=1, max_length=MAX_BATCH, fail_fast=True)
    vectors: list[Vector] = Field(
        default_factory=list, min_length=1, max_length=MAX_BATCH, fail_fast=True, description=_VECTOR
    )

    @model_validator(mode="after")
    def _check_queries(self) -> Self:
        _require_one_of(self, "queries", "vectors")
        return self


class _Versioned(BaseModel):
    version: str = Field(description="version of the bundle that answered")


class _Answered(_Versioned):
    sequence: int = Field(description="number of the last change of the memory that answered; 0 without changes")


def _model(record: Any, names: Iterable[str], base: type[BaseModel] = BaseModel) -> Any:
    """The model of the JSON objects that the named tuples of an answer become."""
    types, defaults = get_type_hints(record), record._field_defaults
    fields: Any = {name: (_json_type(types[name]), defaults.get(name, ...)) for name in names}
    return create_model(record.__name__, __doc__=inspect.getdoc(record), __base__=base, **fields)


def _json_type(kind: Any) -> Any:
    if hasattr(kind, "_fields"):
        return _model(kind, kind._fields)
    if get_origin(kind) is list:
        return list[_json_type(*get_args(kind))]  # type: ignore[misc]
    return functools.reduce(operator.or_, map(_json_type, get_args(kind))) if get_args(kind) else kind


ScoredLabel = _model(answers.ScoredLabel, answers.LABEL_FIELDS, LabelFields)


class Result(BaseModel):
    """The labels of one query, in order of falling score or probability.

    `truncated`: the query was longer than the encoder's limit, so its end was ignored. `exhausted`: fewer labels than
    `top_k`, because the filter admits no more. `without_words`: the query was a vector, so words have no votes and no
    ranker orders the labels, as they would for a text. `reranked`: with `rerank`, whether a cross-encoder read the
    query; `left_out` says why not: `deadline`, `server`, or `text` if the query is a vector.
    """

    labels: list[ScoredLabel]  # type: ignore[valid-type]
    truncated: bool | None = None
    exhausted: bool | None = None
    without_words: bool | None = None
    reranked: bool | None = None
    left_out: str | None = None


class PredictResponse(Result, _Answered):
    """The answer to one query."""


class PredictBatchResponse(_Answered):
    """The answers to several queries, in the order of the queries."""

    results: list[Result]


class KnownLabel(BaseModel):
    """A label, its name and text, and the number of training instances with this label."""

    uid: str
    name: str
    text: str
    training_count: int


class LabelResponse(KnownLabel, LabelFields, _Versioned):
    """One label, with its fields."""


class LabelsResponse(_Answered):
    """The labels that a search found, the best label first."""

    labels: list[KnownLabel]


class VersionResponse(_Versioned):
    """The version that a replica serves, and the time since which it serves this version."""

    created: datetime
    since: datetime
    counts: Counts
    dim: int
    encoder: EncoderInfo
    index: Indexes
    defaults: Defaults
    probabilities: Probabilities | None
    metrics: dict[str, float]
    compaction_recommended: bool = Field(
        description="whether the memory has so many changes that `recollect compact` would make queries clearly cheaper"
    )


class Health(BaseModel):
    status: str
    degraded: list[str] | None = Field(None, description="components that do not work, each with the reason")


class Problem(BaseModel):
    """An error as problem details (RFC 9457). `code` never changes its meaning; `errors` names the wrong fields.

    `open_versions` lists the versions that a request may name, if it names another one.
    """

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    errors: list[dict[str, str]] | None = None
    open_versions: list[str] | None = None
