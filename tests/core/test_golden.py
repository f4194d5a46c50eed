"""Golden queries are written, read and answered, and the fraction of golden labels in the answers is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.core.errors import BundleError
from recollect.core.golden import GOLDEN, GoldenQuery, agreement, read_golden
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor

QUERY = "How doctors treat high blood pressure"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\xff\xfe", "Invalid JSON: "),
        (b"[" * 100_000, "Invalid JSON: recursion limit"),
        (b"{}", "Input should be a valid array"),
        (b'[{"query": "x", "labels": ["1"]}, {"query": "x"}]', "Field required at 1.labels"),
        (b'[{"query": "x", "labels": ["1"], "more": 1}]', "Extra inputs are not permitted at 0.more"),
    ],
)
def test_error_for_a_file_without_golden_queries_names_the_file(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / GOLDEN).write_bytes(content)
    with pytest.raises(BundleError) as refused:
        read_golden(tmp_path / GOLDEN)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path / GOLDEN}: expected golden queries with their labels, found: {found}")
    assert message.endswith("; build the bundle again")
    assert "\n" not in message


def test_agreement_counts_golden_labels_among_equally_many_best_answers(predictor: Predictor) -> None:
    best = [label.uid for label in predictor.predict([QUERY], resolve_options(predictor.defaults)).answers[0].labels]
    assert len(best) == 8
    for labels, kept in [
        (best[:1], 1),
        (best[1:2], 0),  # not the best label of the answer
        (best[:4][::-1], 4),  # in any order
        ([*best[:2], best[7]], 2),
        (["no such label"], 0),
    ]:
        assert agreement(predictor, [GoldenQuery(query=QUERY, labels=labels)]) == kept / len(labels)
    both = [GoldenQuery(query=QUERY, labels=best[:3]), GoldenQuery(query=QUERY, labels=best[7:])]
    assert agreement(predictor, both) == 3 / 4
