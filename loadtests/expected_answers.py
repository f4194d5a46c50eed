"""Compare replies of the service with expected answers, which are computed without the service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from loadtests.client import Reply
from loadtests.workload import Request
from recollect.service.options import resolve_options
from recollect.service.predictor.answers import Answer
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store

# Tolerance of scores. The rounding of a score depends on the other queries that are encoded in the same batch.
_TOLERANCE = 1e-3

Labels = list[tuple[str, float]]


class ExpectedAnswers:
    """The expected answers of each version to each request.

    Args:
        store: Store of the versions.
        versions: Versions that may answer.
        requests: Requests that may be sent. Equal requests are answered once.

    Raises:
        StoreError, BundleError: If a version does not open.
    """

    def __init__(self, store: Store, versions: Sequence[str], requests: Sequence[Request]) -> None:
        different = {request.body: request for request in requests}
        self._answers: dict[str, dict[bytes, list[Labels]]] = {}
        for version in versions:
            predictor = Predictor.open(store.open(version), threads=1)
            self._answers[version] = {body: _labels(predictor, request) for body, request in different.items()}

    def judge(self, request: Request, reply: Reply) -> str:
        """Describe the error in the reply to a request. The description is empty if the reply is right."""
        try:
            return self._judge(request, reply)
        except (ValueError, KeyError, TypeError):
            return f"{reply.status} unreadable"

    def _judge(self, request: Request, reply: Reply) -> str:
        if reply.status != 200:
            return _describe_error(reply)
        body: dict[str, Any] = json.loads(reply.body)
        if reply.version != body["version"]:
            return "version in header differs from body"
        if (answers := self._answers.get(reply.version)) is None:
            return f"unknown version {reply.version}"
        results = body.get("results", [body])
        expected = answers[request.body]
        if len(results) != len(expected):
            return "batch of another size"
        for result, labels in zip(results, expected, strict=True):
            found = [(label["uid"], label["score"]) for label in result["labels"]]
            if not _agree(found, labels):
                return "answer differs from the version's"
            if "explain" in request.options and not all(map(_shares_add_up, result["labels"])):
                return "explanation does not add up"
        return ""


def _labels(predictor: Predictor, request: Request) -> list[Labels]:
    filters: dict[str, Any] = {
        name: tuple(request.options[name]) for name in ("allow", "deny") if name in request.options
    }
    options = resolve_options(predictor.defaults, **filters)
    return [_uids_and_scores(predictor.predict([query], options).answers[0]) for query in request.queries]


def _uids_and_scores(answer: Answer) -> Labels:
    return [(label.uid, label.score) for label in answer.labels]


def _agree(found: Labels, expected: Labels) -> bool:
    """Whether labels and scores are equal up to rounding. Labels with nearly equal scores may be in another order."""
    if len(found) != len(expected):
        return False
    if any(abs(one - other) > _TOLERANCE for (_, one), (_, other) in zip(found, expected, strict=True)):
        return False
    scores, last = dict(expected), expected[-1][1] if expected else 0.0
    return all(abs(scores.get(uid, last) - score) <= _TOLERANCE for uid, score in found)


def _shares_add_up(label: dict[str, Any]) -> bool:
    return bool(abs(sum(reason["share"] for reason in label["because"]) - label["score"]) <= _TOLERANCE)


def _describe_error(reply: Reply) -> str:
    """Describe an error reply by its status and code. A reply with 429 or 503 must have the header Retry-After."""
    is_problem = reply.headers.get("content-type", "").startswith("application/problem+json")
    words = [str(reply.status), *([json.loads(reply.body)["code"]] if is_problem else [])]
    if reply.status in (429, 503) and "retry-after" not in reply.headers:
        words.append("without Retry-After")
    return " ".join(words)
