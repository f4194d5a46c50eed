"""Requests of a load test: shares of the kinds of requests, and frequencies by Zipf's law."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from loadtests.workload import SHARES, make_requests, sample_texts, zipf_ranks

TEXTS = [f"query {number} " + "word " * (number % 60) for number in range(500)]
UIDS = [f"label {number}" for number in range(100)]


def test_equal_seeds_give_equal_requests_and_different_seeds_different_requests() -> None:
    assert make_requests(TEXTS, UIDS, 50, seed=1) == make_requests(TEXTS, UIDS, 50, seed=1)
    assert make_requests(TEXTS, UIDS, 50, seed=1) != make_requests(TEXTS, UIDS, 50, seed=2)


def test_every_kind_of_request_has_its_share() -> None:
    kinds = Counter(request.kind for request in make_requests(TEXTS, UIDS, 4_000, seed=0))
    assert set(kinds) == set(SHARES)
    assert all(kinds[kind] / 4_000 == pytest.approx(share, abs=0.03) for kind, share in SHARES.items())


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


def test_frequencies_of_requests_follow_zipfs_law() -> None:
    drawn = Counter(zipf_ranks(200, 200_000, seed=0))
    assert drawn[0] / drawn[1] == pytest.approx(2, rel=0.1)
    assert drawn[0] / drawn[9] == pytest.approx(10, rel=0.15)
    assert set(drawn) == set(range(200))


def test_sampled_texts_are_evenly_spaced_and_not_empty() -> None:
    assert sample_texts(["a", " ", "b", "", "c"], 5) == ["a", "b", "c"]
    assert sample_texts([str(number) for number in range(101)], 3) == ["0", "50", "100"]
    assert sample_texts(["a"], 10) == ["a"]
