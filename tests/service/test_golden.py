"""Golden queries are written, read and answered, and the fraction of golden labels in the answers is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect.service.errors import BundleError, WrongAnswersError
from recollect.service.model import open_model
from recollect.service.options import resolve_options
from recollect.service.predictor.golden import (
    GOLDEN,
    GOLDEN_CHECK,
    GoldenQuery,
    agreement,
    check_golden,
    read_golden,
    write_golden,
)
from recollect.service.predictor.predictor import Predictor
from tests.service.http_helpers import add_version, copy_store, rehash

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
    expected = f"{tmp_path / GOLDEN}: expected golden queries with their labels, found: {found}"
    assert str(refused.value).startswith(expected)
    assert str(refused.value).endswith("; build the bundle again")
    assert "\n" not in str(refused.value)


def test_answers_of_the_real_bundle_contain_all_golden_labels(predictor: Predictor) -> None:
    golden = read_golden(predictor.bundle.folder / GOLDEN)
    assert {len(each.labels) for each in golden} == {4}
    assert agreement(predictor, golden) == check_golden(predictor) == 1


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


@pytest.fixture
def forged(built: Any, tmp_path: Path) -> Callable[..., Predictor]:
    """Opens the real bundle with the given golden queries and bound."""

    def forge(golden: list[GoldenQuery], checks: list[dict[str, Any]]) -> Predictor:
        def change(folder: Path, manifest: dict[str, Any]) -> None:
            write_golden(folder, golden)
            rehash(folder, manifest)
            manifest["checks"] = checks

        store = copy_store(built.store, tmp_path / "store")
        return open_model(store, add_version(store, built.version, "forged", change)).predictor

    return forge


def test_bundle_is_refused_if_agreement_is_below_the_bound_in_its_manifest(
    forged: Callable[..., Predictor],
) -> None:
    wrong = [GoldenQuery(query=QUERY, labels=["Medicine"]), GoldenQuery(query=QUERY, labels=["Law"])]
    predictor = forged(wrong, [{"name": GOLDEN_CHECK, "found": 1.0, "least": 0.75, "passed": True}])
    with pytest.raises(WrongAnswersError) as error:
        check_golden(predictor)
    assert error.value.exit_status == 1
    path = predictor.bundle.folder / GOLDEN
    expected = "expected at least 75.0% of its labels among the answers, found 50.0%; build the bundle again"
    assert str(error.value) == f"{path}: {expected}"
