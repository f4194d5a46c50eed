"""Compare answers of the service with expected answers, which are computed without the service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from loadtests.workload import Request
from recollect.service.model import open_model

# Tolerance of scores. The rounding of a score depends on the other queries that are encoded in the same batch.
_TOLERANCE = 1e-3

Labels = list[tuple[str, float]]


class ExpectedAnswers:
    """The expected answers of each version to each request.

    Args:
        store: Store of the versions.
        versions: Versions that may answer.
        requests: Requests that may be sent.

    Raises:
        StoreError, BundleError: If a version does not open.
    """

    def __init__(self, store: Path, versions: Sequence[str], requests: Sequence[Request]) -> None:
        self._answers: dict[str, dict[str, list[Labels]]] = {}
        for version in versions:
            model = open_model(store, version)
            self._answers[version] = {
                request.body: [
                    [(label.uid, label.score) for label in labels]
                    for labels in model.predict(request.queries, **request.options)
                ]
                for request in requests
            }

    def judge(self, request: Request, status: int, version: str, content: bytes) -> str:
        """Describe the error in an answer; empty if the answer is right.

        Args:
            request: The request.
            status: Status of the answer.
            version: Version that the header of the answer names.
            content: Body of the answer.
        """
        if status != 200:
            return f"{status}: {content[:200]!r}"
        body = json.loads(content)
        if version != body["version"]:
            return "version in header differs from body"
        if version not in self._answers:
            return f"unknown version {version}"
        found = [
            [(label["uid"], label["score"]) for label in result["labels"]] for result in body.get("results", [body])
        ]
        expected = self._answers[version][request.body]
        right = len(found) == len(expected) and all(map(_agree, found, expected))
        return "" if right else "answer differs from the version's"


def _agree(found: Labels, expected: Labels) -> bool:
    """Whether labels and scores are equal up to rounding. Labels with nearly equal scores may be in another order."""
    if len(found) != len(expected):
        return False
    if any(abs(one - other) > _TOLERANCE for (_, one), (_, other) in zip(found, expected, strict=True)):
        return False
    scores, last = dict(expected), expected[-1][1] if expected else 0.0
    return all(abs(scores.get(uid, last) - score) <= _TOLERANCE for uid, score in found)
