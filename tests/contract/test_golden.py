"""The answers of the committed store are the same to 1e-6 through every door. `make_store.py` says what makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import recollect
from tests.contract.make_store import GOLDEN, TOPICS
from tests.contract.matching import differences
from tests.processes import Server, run, run_json, write_lines

_RECORD = json.loads(GOLDEN.read_text(encoding="utf-8"))
QUERIES: dict[str, str] = _RECORD["queries"]
CASES: list[dict[str, Any]] = _RECORD["cases"]
# All queries with one choice of options.
CHOICES: dict[str, list[dict[str, Any]]] = {}
for _case in CASES:
    CHOICES.setdefault(json.dumps(_case["options"]), []).append(_case)


def as_flags(options: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        given = ",".join(value) if isinstance(value, list) else str(value)
        flags += [flag] if value is True else [flag, given]
    return flags


def as_keywords(options: dict[str, Any]) -> dict[str, Any]:
    return {"lambda_" if name == "lambda" else name: value for name, value in options.items()}


@pytest.fixture(scope="module")
def model(golden_store: Path) -> Any:
    return recollect.open(golden_store)


@pytest.mark.parametrize("group", ["votes", "words", "ranked"])
def test_http_gives_the_golden_answers(open_server: Server, group: str) -> None:
    for case in (each for each in CASES if each["group"] == group):
        response = open_server.ask(QUERIES[case["query"]], **case["options"])
        assert response.status_code == 200, response.text
        assert not differences(response.json(), case["answer"]), case
        assert all(label["text"] == _text(label["uid"]) for label in response.json()["labels"])
        assert response.json().get("truncated", False) is (case["query"] == "long")


@pytest.mark.parametrize("options", CHOICES)
def test_a_batch_gives_the_golden_answers(open_server: Server, options: str) -> None:
    body = {"queries": [QUERIES[case["query"]] for case in CHOICES[options]], **json.loads(options)}
    results = open_server.client.post("/predict/batch", json=body).json()["results"]
    assert not differences(results, [case["answer"] for case in CHOICES[options]])


@pytest.mark.parametrize("options", CHOICES)
def test_python_gives_the_golden_answers(model: Any, options: str) -> None:
    cases, keywords = CHOICES[options], as_keywords(json.loads(options))
    texts = [QUERIES[case["query"]] for case in cases]
    answers, predicted = model.answer(texts, **keywords), model.predict(texts, **keywords)
    for case, answer, labels in zip(cases, answers, predicted, strict=True):
        assert [label.uid for label in labels] == [label.uid for label in answer.labels]
        expected = case["answer"]["labels"]
        found = [{"uid": each.uid, "score": each.score, "probability": each.probability} for each in labels]
        assert not differences(found, [{name: each[name] for name in each if name != "because"} for each in expected])
        for label, reasons in zip(labels, (each.get("because") for each in expected), strict=True):
            terms = None if label.because is None else [vars_of(reason) for reason in label.because]
            assert not differences(terms, reasons)


@pytest.mark.parametrize("options", list(CHOICES)[::8])
def test_the_command_line_gives_the_golden_answers(golden_store: Path, tmp_path: Path, options: str) -> None:
    cases, flags = CHOICES[options], as_flags(json.loads(options))
    one = run_json("predict", QUERIES[cases[0]["query"]], "--store", golden_store, *flags)
    assert not differences(one, cases[0]["answer"])
    rows = [{"id": case["query"], "text": QUERIES[case["query"]]} for case in cases]
    queries, output = write_lines(tmp_path / "queries.jsonl", rows), tmp_path / "answers.jsonl"
    run("predict", "--input", queries, "--output", output, "--store", golden_store, "--workers", 1, *flags)
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert not differences(answers, [row | case["answer"] for row, case in zip(rows, cases, strict=True)])


def test_shares_add_up_to_the_score_and_terms_of_the_ranker_to_the_log_odds(open_server: Server) -> None:
    import math

    for query in QUERIES.values():
        votes = open_server.ask(query, explain=True, order="score", top_k=5).json()["labels"]
        for label in votes:
            assert math.isclose(sum(each["share"] for each in label["because"]), label["score"], abs_tol=1e-6)
            assert "ranked_by" not in label
        ranked = open_server.ask(query, explain=True, top_k=5).json()["labels"]
        assert all({"feature", "value", "log_odds"} <= set(each) for label in ranked for each in label["ranked_by"])
        log_odds = [sum(each["log_odds"] for each in label["ranked_by"]) for label in ranked]
        assert log_odds == sorted(log_odds, reverse=True)


def test_the_committed_store_is_small_and_intact(golden_store: Path, golden_version: str) -> None:
    assert sum(path.stat().st_size for path in golden_store.rglob("*") if path.is_file()) < 300_000
    assert run("verify", "current", "--store", golden_store).stdout.startswith(f"{golden_version}: ")


def vars_of(reason: Any) -> dict[str, Any]:
    found = {name: getattr(reason, name) for name in ("kind", "uid", "text", "share", "by")}
    return {name: value for name, value in found.items() if value is not None}


def _text(label: str) -> str:
    return f"{label} and {TOPICS[label].split()[0]}"
