"""Comparison of a shadow's answers with the answers of the current version."""

from __future__ import annotations

import json

import pytest

from recollect.service.canary.comparison import Comparison, compare


def answer(**scores: float) -> bytes:
    labels = [{"uid": uid, "text": f"text of {uid}", "score": score} for uid, score in scores.items()]
    return json.dumps({"labels": labels, "truncated": True}).encode()


@pytest.mark.parametrize(
    ("ours", "shadow", "expected"),
    [
        ({"a": 0.5, "b": 0.25}, {"a": 0.5, "b": 0.25}, Comparison(True, 1.0, 0.0)),
        ({"a": 0.5, "b": 0.25}, {"b": 0.75, "a": 0.5}, Comparison(False, 1.0, 0.25)),
        ({"a": 0.5, "b": 0.25}, {"a": 0.25, "c": 0.1, "d": 0.1, "e": 0.1}, Comparison(True, 0.25, 0.25)),
        ({"a": 0.5}, {"b": 0.5}, Comparison(False, 0.0, 0.0)),
        ({"a": 0.5}, {}, Comparison(False, 0.0, None)),
        ({}, {"a": 0.5}, Comparison(False, 0.0, None)),
        ({}, {}, Comparison(True, 1.0, None)),
    ],
)
def test_answers_are_compared_by_first_label_labels_and_score(
    ours: dict[str, float], shadow: dict[str, float], expected: Comparison
) -> None:
    assert compare(answer(**ours), answer(**shadow)) == expected
