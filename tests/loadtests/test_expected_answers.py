"""The check of answers: a right answer has no error, and the error in a wrong answer is described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.expected_answers import ExpectedAnswers
from loadtests.workload import Request
from recollect.service.model import open_model

QUERIES = ["How doctors treat high blood pressure", "Photographs of galaxies"]
SINGLE, BATCH = Request("medium", QUERIES[:1], {}), Request("batch", QUERIES, {})
FILTER = Request("filter", QUERIES[:1], {"deny": ["Medicine", "no such label"]})


@pytest.fixture(scope="module")
def expected(built: Any) -> ExpectedAnswers:
    return ExpectedAnswers(Path(built.store), [built.version], [SINGLE, BATCH, FILTER])


@pytest.fixture(scope="module")
def results(built: Any) -> list[dict[str, Any]]:
    """The right answers to the two queries of the batch."""
    answers = open_model(built.store, built.version).predict(QUERIES)
    return [{"labels": [{"uid": label.uid, "score": label.score} for label in labels]} for labels in answers]


def test_request_with_a_filter_expects_an_answer_without_the_denied_label(
    expected: ExpectedAnswers, results: list[Any], built: Any
) -> None:
    def judge(labels: list[Any]) -> str:
        body = json.dumps({"version": built.version, "labels": labels}).encode()
        return expected.judge(FILTER, 200, built.version, body)

    whole = results[0]["labels"]
    assert judge([label for label in whole if label["uid"] != "Medicine"]) == ""
    assert "differs" in judge(whole)


def test_wrong_answers_are_errors(expected: ExpectedAnswers, results: list[Any], built: Any) -> None:
    def judge(request: Request, body: dict[str, Any], version: str = built.version) -> str:
        return expected.judge(request, 200, version, json.dumps({"version": built.version} | body).encode())

    one, other = results
    fewer, swapped = {"labels": one["labels"][:-1]}, {"results": [other, one]}
    assert judge(SINGLE, one) == judge(BATCH, {"results": results}) == ""
    for request, body in ((SINGLE, other), (SINGLE, fewer), (BATCH, swapped), (BATCH, {"results": [one]})):
        assert judge(request, body) == "answer differs from the version's"
    assert judge(SINGLE, one, "v2") == "version in header differs from body"
    assert judge(SINGLE, one | {"version": "v2"}, "v2") == "unknown version v2"
    assert expected.judge(SINGLE, 503, "", b"overloaded") == "503: b'overloaded'"
