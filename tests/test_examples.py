"""The programs in examples/ work on the dataset in examples/garden, and on a dataset that is given as an argument."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import write_topics
from tests.tiny_runs import write_tiny_encoder

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


@pytest.fixture(autouse=True)
def _small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs train a tiny encoder: flags that they do not give come from the environment, as for all verbs."""
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    flags = {"ENCODER": str(encoder), "INDEX": "flat", "LEXICAL": "off", "PRECISION": "fp32", "FORCE": "true"}
    for name, value in flags.items():
        monkeypatch.setenv(f"RECOLLECT_{name}", value)


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_each_program_is_short_and_starts_with_its_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    assert f"python examples/{path.name}" in text.split('"""')[1]


def test_train_and_ask_answers_the_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("train_and_ask", monkeypatch, "--work", tmp_path / "work")
    out = capsys.readouterr().out
    chair, mower = re.split(r"\nlawn mower\n", out)
    assert re.search(r"^garden chair\n  [01]\.\d{3}  \w.*\n +because of the ", chair, re.MULTILINE)
    assert re.match(r"  [01]\.\d{3}  \w.*\n", mower)


def test_evaluate_and_compare_accepts_another_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_topics(tmp_path / "topics")
    run("evaluate_and_compare", monkeypatch, dataset, "--work", tmp_path / "work", "--method", "infonce")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["lambda", "P@1", "P@5", "nDCG@5", "R@10"]
    assert [row.split()[:2] for row in rows] == [
        [name, x] for name in ("untrained", "infonce") for x in ("0", "0.5", "1")
    ]
    assert all(0 <= float(value) <= 100 for row in rows for value in row.split()[2:])


def test_example_with_a_wrong_argument_ends_with_status_2_and_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_and_ask", str(tmp_path / "none"), "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / "train_and_ask.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "none" in capsys.readouterr().err


def test_embedded_application_answers_queries_and_refuses_an_empty_query(built: Any) -> None:
    create_app = runpy.run_path(str(EXAMPLES / "embed_in_fastapi.py"))["create_app"]
    client = TestClient(create_app(str(built.store)))
    answer = client.get("/products", params={"text": "Who must pay tax", "top_k": 2})
    assert answer.status_code == 200
    assert answer.json()["version"] == built.version
    assert [product["id"] for product in answer.json()["products"]][0] == "Taxation"
    assert len(answer.json()["products"]) == 2
    refused = client.get("/products", params={"text": " "})
    assert (refused.status_code, refused.json()["detail"]) == (422, "the query is empty; send some words")
