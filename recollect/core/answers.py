"""Answers: the labels of a query with their scores, the terms of each score, and the time that the answer took.

The schemas of the HTTP interface and the types of the Parquet columns derive from the named tuples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class Reason(NamedTuple):
    """One term of a score.

    The kind is `instance`, `label` or `correction`. `share` is the key's weight times lambda (instance keys) or times
    1 - lambda (label keys); that of a correction is negative. `by` is `words` if the key was found by its words, and
    absent (None) if it was found by its vector. In a bundle with a lexical index, a key that was found by both has two
    terms; the shares of words are multiplied by the word weight, all others by 1 minus it.
    """

    kind: str
    uid: str
    text: str
    share: float
    by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class LogitTerm(NamedTuple):
    """One term of a ranker's logit: a feature of the label, its value, and its log-odds.

    `value` is null (None) for a missing feature, and for the term `bias`, which is the same for all labels. The order
    macro adds the term `tail_weight`, which lowers frequent labels and is no part of the logit.
    """

    feature: str
    value: float | None
    log_odds: float


NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class ScoredLabel(NamedTuple):
    """A label of an answer.

    `name` is what people see, in the language that the options choose; `text` is what the encoder reads. `fields` are
    the fields of the label that the options name, which JSON has beside the others.
    `probability` is the probability that the label is true; it is absent (None) if the bundle has none for these
    options. With `explain`, `because` has the terms of the score, and `ranked_by` those of the log-odds, if a ranker
    ordered the labels.
    """

    # A named tuple, because a frozen dataclass takes three times as long to create.
    position: int
    uid: str
    name: str
    text: str
    score: float
    probability: float | None = None
    because: list[Reason] | None = None
    ranked_by: list[LogitTerm] | None = None
    fields: Mapping[str, Any] = NO_FIELDS

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"uid": self.uid, "name": self.name, "text": self.text, "score": self.score}
        if self.fields:
            content |= {name: value for name, value in self.fields.items() if name not in content}
        if self.probability is not None:
            content["probability"] = self.probability
        if self.because is not None:
            content["because"] = [reason.to_dict() for reason in self.because]
        if self.ranked_by is not None:
            content["ranked_by"] = [term._asdict() for term in self.ranked_by]
        return content


# The fields of a label in JSON and Parquet, and those that only answers with `explain` have.
LABEL_FIELDS, EXPLANATION = ScoredLabel._fields[1:-1], ("because", "ranked_by")


@dataclass(frozen=True)
class Answer:
    """The labels of one query.

    Attributes:
        labels: The labels, best first.
        truncated: Whether the encoder read only the beginning of the query.
        exhausted: Whether the answer has fewer than `top_k` labels because the filter admits too few labels with a
            vote.
        without_words: Whether the query was a vector, and words would have had an effect on a text's answer.
        reranked: Whether a cross-encoder read the query; None if it was not asked to.
        left_out: Why it did not: the `deadline` would have passed, its `server` did not answer, or the query is no
            `text`.
    """

    labels: list[ScoredLabel]
    truncated: bool
    exhausted: bool
    without_words: bool = False
    reranked: bool | None = None
    left_out: str | None = None

    @property
    def may_be_kept(self) -> bool:
        """Whether the same query has the same answer later: no cross-encoder was late or unreachable."""
        return self.left_out not in ("deadline", "server")

    def to_dict(self) -> dict[str, Any]:
        """The fields of the JSON object for HTTP, the answer cache and the command line."""
        content: dict[str, Any] = {"labels": [label.to_dict() for label in self.labels]}
        if self.truncated:
            content["truncated"] = True
        if self.exhausted:
            content["exhausted"] = True
        if self.without_words:
            content["without_words"] = True
        if self.reranked is not None:
            content["reranked"] = self.reranked
        if self.left_out is not None:
            content["left_out"] = self.left_out
        return content


@dataclass(frozen=True)
class Answers:
    """The answers to one request.

    Attributes:
        answers: The answers.
        milliseconds: The milliseconds that each stage of the computation took.
        sequence: Sequence number of the memory that answered.
    """

    answers: list[Answer]
    milliseconds: dict[str, float]
    sequence: int = 0


class Stopwatch:
    """Measures the milliseconds of each stage of a computation."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the previous call to the time of a stage."""
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now
