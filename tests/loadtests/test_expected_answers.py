"""The check of replies: a right reply has no error, and the error in a wrong reply is described."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtests.client import Reply
from loadtests.expected_answers import ExpectedAnswers
from loadtests.workload import Request
from recollect.service.model import open_model
from recollect.service.options import resolve_options
from recollect.service.store.store import Store

QUERY = "How doctors treat high blood pressure"
REQUESTS = [
    Request("medium", (QUERY,), {}),
    Request("batch", (QUERY, "Photographs of galaxies"), {}),
    Request("filter", (QUERY,), {"deny": ["Medicine", "no such label"]}),
    Request("explain", (QUERY,), {"explain": True}),
]
PROBLEM = {"content-type": "application/problem+json"}


@pytest.fixture(scope="module")
def expected(built: Any) -> ExpectedAnswers:
    return ExpectedAnswers(Store(built.store), [built.version], REQUESTS)


@pytest.fixture(scope="module")
def results(built: Any) -> list[dict[str, Any]]:
    """The right answers to the two queries of the batch, with explanations."""
    predictor = open_model(built.store, built.version).predictor
    answers = predictor.predict(list(REQUESTS[1].queries), resolve_options(predictor.defaults, explain=True)).answers
    return [
        {
            "labels": [
                {
                    "uid": label.uid,
                    "score": label.score,
                    "because": [{"share": reason.share} for reason in label.because or []],
                }
                for label in answer.labels
            ]
        }
        for answer in answers
    ]


def reply(body: Any, version: str, status: int = 200, **headers: str) -> Reply:
    return Reply(status, {"x-index-version": version, **headers}, json.dumps(body).encode())


def test_request_with_a_filter_expects_an_answer_without_the_denied_label(
    expected: ExpectedAnswers, results: list[Any], built: Any
) -> None:
    whole = results[0]["labels"]
    allowed = [label for label in whole if label["uid"] != "Medicine"]
    assert expected.judge(REQUESTS[2], reply({"version": built.version, "labels": allowed}, built.version)) == ""
    assert "differs" in expected.judge(REQUESTS[2], reply({"version": built.version, "labels": whole}, built.version))


def test_wrong_answers_are_errors(expected: ExpectedAnswers, results: list[Any], built: Any) -> None:
    one, other = results
    fewer, swapped = {"labels": one["labels"][:-1]}, {"results": [other, one]}
    for number, body in ((0, other), (0, fewer), (1, swapped), (1, {"results": [one, fewer]})):
        assert expected.judge(REQUESTS[number], reply({"version": built.version, **body}, built.version)) == (
            "answer differs from the version's"
        )
    assert (
        expected.judge(REQUESTS[1], reply({"version": built.version, "results": [one]}, built.version))
        == "batch of another size"
    )


def test_explanation_whose_shares_do_not_add_up_to_the_score_is_an_error(
    expected: ExpectedAnswers, results: list[Any], built: Any
) -> None:
    labels = [label | {"because": label["because"][1:]} for label in results[0]["labels"]]
    message = expected.judge(REQUESTS[3], reply({"version": built.version, "labels": labels}, built.version))
    assert message == "explanation does not add up"


def test_error_replies_are_described_by_status_and_code_and_503_must_have_retry_after(
    expected: ExpectedAnswers, built: Any
) -> None:
    overloaded, retry = {"code": "overloaded"}, {"retry-after": "1"}
    assert expected.judge(REQUESTS[0], reply(overloaded, "", 503, **PROBLEM, **retry)) == "503 overloaded"
    assert expected.judge(REQUESTS[0], reply(overloaded, "", 503, **PROBLEM)) == "503 overloaded without Retry-After"
    assert expected.judge(REQUESTS[0], reply("<html>", "", 502)) == "502"
    assert expected.judge(REQUESTS[0], reply("no problem", "", 500, **PROBLEM)) == "500 unreadable"
    assert expected.judge(REQUESTS[0], Reply(200, {}, b"{")) == "200 unreadable"
    assert expected.judge(REQUESTS[0], reply({}, built.version)) == "200 unreadable"
