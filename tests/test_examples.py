"""The programs in examples/ work on the dataset in examples/garden, and on a dataset that is given as an argument.

The notebook works with the packaged encoder, on the table in examples/.
"""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import write_topics
from tests.processes import PATIENCE_SECONDS, environment
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


def test_notebook_runs_without_an_error_and_shows_answers_votes_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    shutil.copy(EXAMPLES / "products.csv", tmp_path)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # Stored outputs would change with each run. The tutorial shows the same answers, and a test compares these.
    assert not any(cell.outputs or cell.execution_count for cell in code)

    client = nbclient.NotebookClient(
        notebook, timeout=PATIENCE_SECONDS, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=environment(IPYTHONDIR=str(tmp_path / "ipython")))

    outputs = [output for cell in code for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert re.search(r"^0\.4\d+  Folding garden chair\n0\.0\d+  Wooden garden bench$", printed, re.MULTILINE)
    assert re.search(r"^0\.3\d+  instance  something to sit on outside$", printed, re.MULTILINE)
    assert re.search(r"^lambda 0\.5 +P@1  91\.67 .*\n(.*\n)+popularity +P@1 +2\.78$", printed, re.MULTILINE)
    assert printed.endswith("Hammock\n")
    assert ["image/png" in output.data for output in outputs if "data" in output] == [True]
