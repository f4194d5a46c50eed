"""`recollect evaluate --by`: metrics by the values of a field of labels, against loops over answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import recollect
from tests.conftest import TOPICS
from tests.processes import copy_store
from tests.service.stores import add_version, make_first, with_fields

GROUPS = {label: ["all", "odd" if place % 2 else "even"] for place, label in enumerate(TOPICS) if label != "Cooking"}


@pytest.fixture
def store(built: Any, tmp_path: Path) -> Path:
    """A store with groups and years of labels; the label Cooking has neither."""
    store = copy_store(built.store, tmp_path / "store")
    fields = {label: {"groups": groups, "year": len(label)} for label, groups in GROUPS.items()}
    make_first(store, add_version(store, built.version, "grouped", with_fields(fields)))
    return store


def test_metrics_of_each_group_equal_loops_over_answers(
    built: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report"
    command = ["evaluate", str(built.dataset), "--store", str(store), "--by", "groups", "--lambda", "0,1"]
    assert recollect.main([*command, "--json", "--report", str(report)]) == 0
    measured = json.loads(capsys.readouterr().out)["by"]
    tests = [json.loads(line) for line in (built.dataset / "test.jsonl").read_text().splitlines()]
    model = recollect.open(store)
    for found, lambda_ in zip(measured, (0, 1), strict=True):
        assert (found["field"], found["values"], found["lambda"]) == ("groups", 3, lambda_)
        answers = [[label.uid for label in model.predict(row["text"], top_k=100, lambda_=lambda_)] for row in tests]
        for group in found["groups"]:
            members = {label for label, groups in GROUPS.items() if group["value"] in groups}
            true = [members.intersection(row["labels"]) for row in tests]
            counts = len(members), sum(map(bool, true)), sum(map(len, true))
            assert (group["labels"], group["texts"], group["true"]) == counts
            for k in (5, 10, 100):
                hits = sum(len(labels.intersection(answer[:k])) for labels, answer in zip(true, answers, strict=True))
                assert group[f"R@{k}"] == pytest.approx(100 * hits / counts[2])
                if k == 5:
                    predicted = sum(label in members for answer in answers for label in answer[:5])
                    assert group["precision@5"] == pytest.approx(100 * hits / predicted)
        assert [group["value"] for group in found["groups"]][0] == "all"

    assert recollect.main(command) == 0
    printed = capsys.readouterr().out
    assert printed.count("groups, 3 of 3 values, the most frequent first: lambda ") == 2
    assert "<h2>By groups</h2>" in (report / "report.html").read_text()
    assert "<td>even</td>" in (report / "report.html").read_text()


@pytest.mark.parametrize(("version", "fields"), [("grouped", "groups, year"), ("", "none")])
def test_unknown_field_is_one_message_with_the_fields_that_exist(
    built: Any, store: Path, capsys: pytest.CaptureFixture[str], version: str, fields: str
) -> None:
    named = version or built.version
    assert recollect.main(["evaluate", str(built.dataset), "--store", str(store), "--version", named, "--by", "x"]) == 2
    out, err = capsys.readouterr()
    message = f"recollect evaluate: --by: expected a field of the labels of {named} ({fields}), found 'x'"
    assert (out, err.strip().splitlines()[-1]) == ("", message)
