"""Every method's memory is served as it was trained: the answers are those of the written formula, in float64."""

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
from tests.conftest import TOPICS, write_topics
from tests.index_builder.conftest import write_tiny_encoder
from tests.service.http_helpers import serving
from trainer.checkpoint import load_checkpoint
from trainer.methods import METHODS

TAU, TOP_B = 0.05, 12
CASES = [*((method, "adapter") for method in METHODS), ("prime", "full"), ("unidec", "full")]
# As users ask; none is an instance.
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
    """The topics, and an encoder that is as small as can be."""
    folder = tmp_path_factory.mktemp("served")
    write_topics(folder / "dataset")
    write_tiny_encoder(folder / "encoder", "bert")
    return folder


def do(*words: object) -> None:
    assert recollect.main([str(word) for word in words]) == 0


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def served(request: pytest.FixtureRequest, folder: Path) -> Iterator[Served]:
    """A method's memory, trained, tuned, built and behind a real server."""
    method, what = request.param
    run, store = folder / f"{method} {what}", folder / f"store {method} {what}"
    flags = ["--encoder", folder / "encoder", "--max-length", 64, "--batch-size", 7, "--epochs", 3]
    do("train", folder / "dataset", "--out", run, *flags, "--method", method, "--train", what)
    few = ["--lambda", "0,.3,.7,1", "--temperature", TAU, "--top-b", f"{TOP_B},25", "--label-key-alpha", "0,.5"]
    do("tune", run, *few, "--json")
    do("build", run, "--store", store, "--index", "flat", "--activate")
    with serving(store) as server:
        yield Served(method, run, store, server.url)


@functools.cache
def vectors(run: Path) -> np.ndarray:
    """The queries', by the run's own encoder."""
    encoder = load_checkpoint(run / "checkpoint", "cpu")
    return encoder.encode(QUERIES, encoder.config.max_length).astype(np.float64)


def exact_scores(run: Path, query: str, lambda_: float, temperature: float, top_b: int, alpha: float) -> np.ndarray:
    """Each label's score: p = softmax over the b nearest of q K^T / tau, times [lambda Y; (1 - lambda) I].

    RAE-XMC, Eq. 4, 5 and 7; at lambda = 0 over the labels alone, at lambda = 1 over the instances (Eq. 8). Label keys
    are z = unit((1 - alpha) t + alpha unit(sum of the label's instances)).
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


def ask(served: Served, **options: Any) -> list[dict[str, float]]:
    """Each query's labels and scores, as the server answers."""
    body = {"queries": QUERIES, "top_k": len(TOPICS), **options}
    response = httpx.post(f"{served.url}/predict/batch", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return [{label["uid"]: label["score"] for label in result["labels"]} for result in response.json()["results"]]


@pytest.mark.parametrize("lambda_", [0, 0.3, 1, None], ids=lambda lambda_: f"lambda {lambda_}")
def test_answers_are_the_trainers_own_exact_scores(served: Served, lambda_: float | None) -> None:
    defaults = json.loads((served.run / "memory" / "memory.json").read_text())["defaults"]
    given = {} if lambda_ is None else {"lambda": lambda_, "temperature": TAU, "top_b": TOP_B}
    settings = [(defaults | given)[name] for name in ("lambda", "temperature", "top_b", "label_key_alpha")]
    for query, answer in zip(QUERIES, ask(served, **given), strict=True):
        expected = exact_scores(served.run, query, *settings)
        found = np.array([answer.get(uid, 0.0) for uid in TOPICS])
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=query)


def test_tuning_left_its_choice_as_what_is_answered_by_default(served: Served) -> None:
    defaults = json.loads((served.run / "memory" / "memory.json").read_text())["defaults"]
    told = httpx.get(f"{served.url}/version", timeout=60).json()["defaults"]
    names = ("lambda", "temperature", "top_b")
    assert [told[name] for name in names] == [defaults[name] for name in names]


def test_a_label_that_no_instance_has_is_found_by_its_text(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    answer = ask(served, **{"lambda": 0})[QUERIES.index("Never seen")]
    assert max(answer, key=lambda uid: answer[uid]) == "Never seen"
    capfd.readouterr()
    do("predict", "Never seen", "--store", served.store, "--lambda", 0, "--json")
    printed = json.loads(capfd.readouterr().out)["labels"][0]
    assert printed["uid"] == "Never seen"
    assert printed["score"] == pytest.approx(answer["Never seen"], abs=1e-6)


def test_keys_are_as_wide_as_what_the_method_compares(served: Served) -> None:
    width = 64 if served.method == "unidec" else 32
    assert httpx.get(f"{served.url}/version", timeout=60).json()["dim"] == width
    assert np.load(served.run / "memory" / "keys.npy", mmap_mode="r").shape[1] == width
