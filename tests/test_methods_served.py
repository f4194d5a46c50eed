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

import recollect
from recollect.trainer.encoding.checkpoint import load_checkpoint
from tests.conftest import TOPICS, write_topics
from tests.processes import serving
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


def run_recollect(*words: object) -> None:
    assert recollect.main([str(word) for word in words]) == 0


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, id=" ".join(case)) for case in CASES],
)
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[Served]:
    """A memory that one method trained, tuned, built into a bundle, and served by a real server."""
    method, what = request.param
    run, store = folder / f"{method} {what}", folder / f"store {method} {what}"
    flags = ["--encoder", folder / "encoder", "--max-length", 64, "--batch-size", 7, "--epochs", 3]
    run_recollect("train", folder / "dataset", "--out", run, *flags, "--method", method, "--train", *what.split())
    small_grid = ["--lambda", "0,.3,.7,1", "--temperature", TAU, "--top-b", f"{TOP_B},25", "--label-key-alpha", "0,.5"]
    run_recollect("tune", run, *small_grid, "--json")
    run_recollect("build", run, "--store", store, "--index", "flat", "--activate")
    with serving(store) as server:
        yield Served(method, run, store, server.url)


@functools.cache
def vectors(run: Path) -> np.ndarray:
    """The vectors of the queries from the run's encoder."""
    encoder = load_checkpoint(run / "checkpoint", "cpu")
    return encoder.encode(QUERIES, encoder.config.max_length).astype(np.float64)


def exact_scores(run: Path, query: str, lambda_: float, temperature: float, top_b: int, alpha: float) -> np.ndarray:
    """The score of each label: softmax(q K^T / tau) over the b nearest keys, times [lambda Y; (1 - lambda) I].

    RAE-XMC, Eq. 4, 5 and 7. Only label keys are searched at lambda = 0, only instance keys at lambda = 1 (Eq. 8). A
    label key is z = unit((1 - alpha) t + alpha unit(sum of the label's instance keys)), where t is its text's key.
    """
    memory = run / "memory"
    keys = np.load(memory / "keys.npy").astype(np.float64)
    indptr, indices = (np.load(memory / f"value_{name}.npy") for name in ("indptr", "indices"))
    instances = len(indptr) - 1
    labels = len(keys) - instances
    y = np.zeros((instances, labels))
    for row in range(instances):
        y[row, indices[indptr[row] : indptr[row + 1]]] = 1
    for label in range(labels):
        total = keys[:instances][y[:, label] == 1].sum(axis=0)
        if alpha and np.linalg.norm(total):
            mixed = (1 - alpha) * keys[instances + label] + alpha * total / np.linalg.norm(total)
            keys[instances + label] = mixed / np.linalg.norm(mixed)
    values = np.concatenate([lambda_ * y, (1 - lambda_) * np.eye(labels)])
    if lambda_ in (0, 1):
        part = slice(instances, None) if lambda_ == 0 else slice(instances)
        keys, values = keys[part], values[part]
    similarities = keys @ vectors(run)[QUERIES.index(query)]
    nearest = np.argsort(-similarities, kind="stable")[:top_b]
    weights = np.exp((similarities[nearest] - similarities.max()) / temperature)
    scores: np.ndarray = weights / weights.sum() @ values[nearest]
    return scores


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
    for query, answer in zip(QUERIES, predict(served, **given), strict=True):
        expected = exact_scores(served.run, query, *settings)
        found = np.array([answer.get(uid, 0.0) for uid in TOPICS])
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=query)


def test_tuned_settings_are_the_served_defaults(served: Served) -> None:
    defaults = json.loads((served.run / "memory" / "memory.json").read_text())["defaults"]
    served_defaults = httpx.get(f"{served.url}/version", timeout=60).json()["defaults"]
    names = ("lambda", "temperature", "top_b")
    assert [served_defaults[name] for name in names] == [defaults[name] for name in names]


def test_label_without_instances_is_found_by_its_text(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    answer = predict(served, **{"lambda": 0})[QUERIES.index("Never seen")]
    assert max(answer, key=lambda uid: answer[uid]) == "Never seen"
    capfd.readouterr()
    run_recollect("predict", "Never seen", "--store", served.store, "--lambda", 0, "--json")
    printed = json.loads(capfd.readouterr().out)["labels"][0]
    assert printed["uid"] == "Never seen"
    assert printed["score"] == pytest.approx(answer["Never seen"], abs=1e-6)
