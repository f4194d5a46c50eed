"""Requests of a load test: shares of the kinds of requests, and frequencies by Zipf's law."""

from __future__ import annotations

import json

from loadtests.workload import make_requests

TEXTS = [f"query {number} " + "word " * (number % 60) for number in range(500)]
UIDS = [f"label {number}" for number in range(100)]


def test_equal_seeds_give_equal_requests_and_different_seeds_different_requests() -> None:
    assert make_requests(TEXTS, UIDS, 50, seed=1) == make_requests(TEXTS, UIDS, 50, seed=1)
    assert make_requests(TEXTS, UIDS, 50, seed=1) != make_requests(TEXTS, UIDS, 50, seed=2)


def test_queries_differ_in_length_and_bodies_have_the_fields_of_the_service() -> None:
    requests = make_requests(TEXTS, UIDS, 400, seed=0)
    words = {
        kind: [len(request.queries[0].split()) for request in requests if request.kind == kind]
        for kind in ("short", "medium", "long")
    }
    assert max(words["short"]) == 4
    assert max(words["medium"]) == 40
    assert set(words["long"]) == {300}
    for request in requests:
        body = json.loads(request.body)
        if request.kind == "batch":
            assert request.path == "/predict/batch"
            assert 2 <= len(body["queries"]) <= 16
        else:
            assert request.path == "/predict"
            assert body["query"] == request.queries[0]
        if request.kind == "filter":
            (named,) = (body[name] for name in ("allow", "deny") if name in body)
            assert set(named) <= set(UIDS)
