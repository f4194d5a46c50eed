"""For several kinds of memory, the answers of a server equal the formula of the paper, computed in float64."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import open_memory
from tests.conftest import TOPICS, write_topics
from tests.formula import label_scores
from tests.processes import call, serving
from tests.tiny_runs import write_tiny_encoder

TAU, TOP_B = 0.05, 12
# A plain memory, one whose encoder has a classifier, one with smaller keys, and one whose label keys are a classifier's
# vectors. Other methods train other weights of the same parts.
CASES = [("rae", "adapter"), ("unidec", "full"), ("supcon", "full --projection 16"), ("ova", "head")]
# Queries that are not instances of the memory.
QUERIES = [
    *(sentences[-1] for sentences in TOPICS.values() if sentences),
    "Never seen",
    "Who must pay",
    "a mass in an old church",
    "x",
    "garlic, garlic, garlic",
]


class Served(NamedTuple):
    method: str
    run: Path
    store: Path
    url: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset of topics and a tiny encoder."""
    folder = tmp_path_factory.mktemp("served")
    write_topics(folder / "dataset")
    write_tiny_encoder(folder / "encoder", "bert")
    return folder


@pytest.fixture(scope="module", params=[pytest.param(case, id=" ".join(case)) for case in CASES])
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[Served]:
    """A memory that one method trained, tuned, built into a bundle, and served by a real server."""
    method, what = request.param
    run, store = folder / f"{method} {what}", folder / f"store {method} {what}"
    flags = ["--encoder", folder / "encoder", "--max-length", 64, "--batch-size", 7, "--epochs", 3, "--tune", "no"]
    call("train", folder / "dataset", "--out", run, *flags, "--method", method, "--train", *what.split())
    small_grid = ["--lambda", "0,.3,.7,1", "--temperature", TAU, "--top-b", f"{TOP_B},25", "--label-key-alpha", "0,.5"]
    call("tune", run, *small_grid, "--json")
    call("build", run, "--store", store, "--index", "flat", "--activate")
    with serving(store) as server:
        yield Served(method, run, store, server.url)


@functools.cache
def vectors(run: Path) -> np.ndarray:
    """The vectors of the queries from the run's encoder."""
    encoder = load_checkpoint(run / "checkpoint", "cpu")
    return encoder.encode(QUERIES, encoder.config.max_length)


def exact_scores(run: Path, lambda_: float, temperature: float, top_b: int, alpha: float) -> np.ndarray:
    """The score of each label for each query.

    A label key is z = unit((1 - alpha) t + alpha unit(sum of the label's instance keys)), where t is its text's key.
    """
    memory = open_memory(run / "memory")
    y = memory.label_sets.to_csr(memory.plan.labels).toarray()
    instances, labels = np.split(memory.keys.astype(np.float64), [len(y)])
    for label, key in enumerate(labels):
        total = instances[y[:, label] == 1].sum(axis=0)
        if alpha and np.linalg.norm(total):
            mixed = (1 - alpha) * key + alpha * total / np.linalg.norm(total)
            labels[label] = mixed / np.linalg.norm(mixed)
    return label_scores(vectors(run), instances, labels, y, lambda_, temperature, top_b)


def predict(served: Served, **options: Any) -> list[dict[str, float]]:
    """The labels and scores of each query, as the server returns them."""
    body = {"queries": QUERIES, "top_k": len(TOPICS), **options}
    response = httpx.post(f"{served.url}/predict/batch", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return [{label["uid"]: label["score"] for label in result["labels"]} for result in response.json()["results"]]


@pytest.mark.parametrize("lambda_", [0, 0.3, 1, None], ids=lambda lambda_: f"lambda {lambda_}")
def test_answers_equal_the_exact_scores_of_the_formula(served: Served, lambda_: float | None) -> None:
    defaults = json.loads((served.run / "memory" / "memory.json").read_text())["defaults"]
    given = {} if lambda_ is None else {"lambda": lambda_, "temperature": TAU, "top_b": TOP_B}
    settings = [(defaults | given)[name] for name in ("lambda", "temperature", "top_b", "label_key_alpha")]
    found = np.array([[answer.get(uid, 0.0) for uid in TOPICS] for answer in predict(served, **given)])
    np.testing.assert_allclose(found, exact_scores(served.run, *settings), atol=1e-4)


def test_tuned_settings_are_the_served_defaults(served: Served) -> None:
    defaults = json.loads((served.run / "memory" / "memory.json").read_text())["defaults"]
    served_defaults = httpx.get(f"{served.url}/version", timeout=60).json()["defaults"]
    names = ("lambda", "temperature", "top_b")
    assert [served_defaults[name] for name in names] == [defaults[name] for name in names]


def test_label_without_instances_is_found_by_its_text(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    answer = predict(served, **{"lambda": 0})[QUERIES.index("Never seen")]
    assert max(answer, key=lambda uid: answer[uid]) == "Never seen"
    capfd.readouterr()
    call("predict", "Never seen", "--store", served.store, "--lambda", 0, "--json")
    printed = json.loads(capfd.readouterr().out)["labels"][0]
    assert printed["uid"] == "Never seen"
    assert printed["score"] == pytest.approx(answer["Never seen"], abs=1e-6)
