"""A new answer option is one field and its effect: HTTP, Python, command line, bulk answers and cache then have it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recollect
from tests.processes import PATIENCE_SECONDS, serving

ROOT = Path(recollect.__file__).resolve().parents[1]
FIELD = '    loud: bool = _option("Return texts in capitals", False, may_be_none=False)\n'
EFFECT = """
_predict_together = Predictor.predict_together


def _predict_loudly(self, requests, *rest):
    found = _predict_together(self, requests, *rest)
    for (_, options), answers in zip(requests, found, strict=True):
        for answer in answers.answers if options.loud else ():
            answer.labels[:] = [label._replace(text=label.text.upper()) for label in answer.labels]
    return found


Predictor.predict_together = _predict_loudly
"""
DROPPING_FIELD = """    even: bool = _option(
        "Drop every second label", False, may_be_none=False, drops=lambda _, ranking, labels: ranking.label % 2 == 0
    )
"""


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source code with two more options: `loud` and `even`."""
    folder = tmp_path_factory.mktemp("next release")
    shutil.copytree(ROOT / "recollect", folder / "recollect", symlinks=True)
    for name in ("service", "trainer", "index_builder"):
        shutil.copytree(ROOT / name, folder / name)  # with the compiled loops, which take eleven seconds
    options, predictor = (folder / "recollect" / "core" / f"{name}.py" for name in ("options", "predictor"))
    before, declared, after = options.read_text().partition("    assign: ")
    options.write_text(before + FIELD + DROPPING_FIELD + declared + after)
    predictor.write_text(predictor.read_text() + EFFECT)
    return folder


def variables_of(release: Path) -> dict[str, str]:
    """The environment of a program that imports this release, also if its current folder has another one."""
    return {"PYTHONPATH": str(release), "PYTHONSAFEPATH": "1"}


def run_next(release: Path, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys, recollect\n{program}", *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | variables_of(release), text=True, capture_output=True, timeout=PATIENCE_SECONDS
    )


def texts(answer: dict[str, Any]) -> list[str]:
    return [label["text"] for label in answer["labels"]]


def test_new_option_works_over_http_and_in_the_cache(light_versions: Path, next_release: Path) -> None:
    with serving(light_versions, **variables_of(next_release)) as server:
        body = {"query": "bread", "loud": True}
        quiet, loud, cached = (server.client.post("/predict", json=each) for each in ({"query": "bread"}, body, body))
        assert texts(loud.json()) == [text.upper() for text in texts(quiet.json())] != texts(quiet.json())
        assert loud.content == cached.content
        assert "cache" not in loud.headers["server-timing"]
        assert "cache" in cached.headers["server-timing"]
        schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
        described = {"type": "boolean", "default": False, "description": "Return texts in capitals"}
        for schema in ("PredictRequest", "PredictBatchRequest"):
            assert described.items() <= schemas[schema]["properties"]["loud"].items()


def test_new_option_works_in_python_and_on_the_command_line(light_versions: Path, next_release: Path) -> None:
    program = (
        "print([label.text for label in recollect.open(sys.argv[3]).predict('bread', loud=True)])\n"
        "recollect.main(['predict', 'bread', '--loud', '--json', *sys.argv[2:]])"
    )
    found = run_next(next_release, program, "bread", "--store", light_versions)
    assert found.returncode == 0, found.stderr
    in_python, on_command_line = found.stdout.splitlines()
    shown = texts(json.loads(on_command_line))
    assert str(shown) == in_python
    assert shown == [text.upper() for text in shown]


def test_other_labels_take_the_places_of_those_that_an_option_drops(light_versions: Path, next_release: Path) -> None:
    program = (
        "model = recollect.open(sys.argv[1])\n"
        "for options in {}, {'top_b': 1}, {'deny': [model.predict('bread')[0].uid]}:\n"
        "    whole = model.predict('bread', **options | {'top_k': 1000, 'top_b': 1000})\n"
        "    found = model.predict('bread', **options, top_k=3, even=True)\n"
        "    best = next(label.uid for label in whole if label.position % 2 == 0)\n"
        "    print(len(found), [label.position % 2 for label in found], found[0].uid == best)"
    )
    found = run_next(next_release, program, light_versions)
    assert found.stdout.splitlines() == ["3 [0, 0, 0] True"] * 3, found.stderr


def test_unfinished_bulk_job_continues_after_a_release_with_a_new_option(
    light_versions: Path, next_release: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "bread"}\n{"text": ""}\n{"text": "oven"}\n')
    flags = ["predict", "--input", source, "--output", target, "--store", light_versions, "--workers", 1, "--top-k", 1]
    assert recollect.main([str(each) for each in flags]) == 2  # the second row is bad
    assert Path(f"{target}.partial").exists()
    program = "sys.exit(recollect.main())"
    flags += ["--bad-rows", "mark"]
    refused = run_next(next_release, program, *flags, "--loud")
    assert "its task was started with loud null, found true; continue with the same" in refused.stderr
    continued = run_next(next_release, program, *flags)
    assert continued.returncode == 0, continued.stderr
    first, second, third = map(json.loads, target.read_text().splitlines())
    assert second["error"]
    assert len(first["labels"]) == len(third["labels"]) == 1
