"""Answers: the labels of a query with their scores, the terms of each score, and the time that the answer took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple


class Reason(NamedTuple):
    """One term of a score; `by` is "words" if the key was found by its words, and None if by its vector.

    The kind is `instance`, `label` or `correction`. The share of a correction is negative.
    """

    kind: str
    uid: str
    text: str
    share: float
    by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class LogitTerm(NamedTuple):
    """One term of a ranker's logit: a feature of the label, its value (None if it is missing), and its log-odds.

    The term `bias` is the same for all labels, and has no value.
    """

    feature: str
    value: float | None
    log_odds: float


class ScoredLabel(NamedTuple):
    """A label of an answer. A named tuple, because a frozen dataclass takes three times as long to create."""

    position: int
    uid: str
    text: str
    score: float
    because: list[Reason] | None = None
    probability: float | None = None
    ranked_by: list[LogitTerm] | None = None

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"uid": self.uid, "text": self.text, "score": self.score}
        if self.probability is not None:
            content["probability"] = self.probability
        if self.because is not None:
            content["because"] = [reason.to_dict() for reason in self.because]
        if self.ranked_by is not None:
            content["ranked_by"] = [term._asdict() for term in self.ranked_by]
        return content


@dataclass(frozen=True)
class Answer:
    """The labels of one query.

    Attributes:
        labels: The labels, best first.
        truncated: Whether the encoder read only the beginning of the query.
        exhausted: Whether the answer has fewer than `top_k` labels because the filter admits too few labels with a
            vote.
    """

    labels: list[ScoredLabel]
    truncated: bool
    exhausted: bool

    def to_dict(self) -> dict[str, Any]:
        """The fields of the JSON object for HTTP, the answer cache and the command line."""
        content: dict[str, Any] = {"labels": [label.to_dict() for label in self.labels]}
        if self.truncated:
            content["truncated"] = True
        if self.exhausted:
            content["exhausted"] = True
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
