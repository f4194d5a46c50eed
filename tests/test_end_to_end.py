"""The verbs run in separate processes, from the sample dataset to an answer over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import keep_some_labels, write_topics

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
Recollect = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def recollect(tmp_path: Path) -> Recollect:
    """A function that runs a verb in `tmp_path`. The verb must succeed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "recollect", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done

    return run


def predict_over_http(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/predict", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.slow
def test_sample_dataset_can_be_encoded_built_evaluated_and_served(recollect: Recollect, tmp_path: Path) -> None:
    recollect("sample", "dataset")
    tests = keep_some_labels(tmp_path / "dataset", 150)
    train = ("train", "dataset", "--out", "run", "--epochs", "0", "--max-length", "32")
    assert "already done" not in recollect(*train).stderr
    assert "already done" in recollect(*train).stderr
    first = recollect("build", "run", "--store", "store", "--activate").stdout.splitlines()[-1]

    measured = json.loads(recollect("evaluate", "dataset", "--store", "store", "--lambda", "0,.5", "--json").stdout)
    assert (measured["version"], measured["queries"], len(measured["rows"])) == (first, tests, 2)
    assert measured["rows"][1]["P@1"] > measured["rows"][0]["P@1"] > 5

    assert recollect("versions", "--store", "store").stdout.startswith(f"* {first}  ")
    assert f"{first}: " in recollect("verify", first, "--store", "store").stdout
    query = json.loads((tmp_path / "dataset" / "train.jsonl").read_text().splitlines()[0])
    printed = json.loads(recollect("predict", query["text"], "--store", "store", "--json").stdout)
    assert printed["labels"][0]["uid"] in query["labels"]
    assert served(tmp_path, query["text"]) == pytest.approx(printed["labels"][0]["score"], abs=1e-6)


def served(folder: Path, query: str) -> float:
    """Start a server, and return the score of the best label over HTTP. The server must stop after SIGTERM."""
    command = [sys.executable, "-m", "recollect", "serve", "--store", "store", "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while '"serving"' not in (text := (folder / "log").read_text()):
            assert time.monotonic() < deadline, text
            assert process.poll() is None, text
            time.sleep(0.05)
        event = next(event for event in map(json.loads, text.splitlines()) if event["event"] == "serving")
        score: float = predict_over_http(event["url"], {"query": query})["labels"][0]["score"]
        return score
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


@pytest.mark.slow
def test_trained_and_tuned_adapter_can_be_built_and_served(recollect: Recollect, tmp_path: Path) -> None:
    write_topics(tmp_path / "dataset")
    assert "train: rae, adapter, 15 steps of 27 queries, 1 instances held out" in (
        recollect("train", "dataset", "--out", "run").stderr
    )
    tuned = json.loads(recollect("tune", "run", "--json").stdout)
    assert tuned["best"]["score"] >= tuned["before"]["score"]
    version = recollect("build", "run", "--store", "store", "--activate").stdout.splitlines()[-1]

    manifest = json.loads((tmp_path / "store" / "bundles" / version / "manifest.json").read_text())
    names = ("lambda", "temperature", "top_b")
    assert [manifest["defaults"][name] for name in names] == [tuned["best"][name] for name in names]
    measured = json.loads(recollect("evaluate", "dataset", "--store", "store", "--json").stdout)
    assert (measured["version"], measured["queries"]) == (version, 7)
    assert measured["rows"][0]["P@1"] > 50
    printed = json.loads(recollect("predict", "Who must pay tax", "--store", "store", "--json").stdout)
    assert printed["labels"][0]["uid"] == "Taxation"
