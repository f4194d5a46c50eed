"""The order macro: which labels move up, what stays the same, and where it is refused."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.answers import ScoredLabel
from recollect.core.errors import QueryError
from recollect.edits.live import LivePredictor
from recollect.model import Model, open_model
from tests.core.test_probabilities import INFO
from tests.processes import copy_store, serving
from tests.service.stores import add_version, make_first

QUERY = "Who must pay tax on the sale of a house"
TAIL_WEIGHT = 0.3


def with_macro(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: it gives probabilities, and has the order macro."""
    manifest["probabilities"] = json.loads(INFO.model_dump_json())
    manifest["defaults"]["tail_weight"] = TAIL_WEIGHT


@pytest.fixture(scope="module")
def macro_store(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = copy_store(built.store, tmp_path_factory.mktemp("macro") / "store")
    make_first(store, add_version(store, built.version, "macro", with_macro))
    return store


@pytest.fixture(scope="module")
def model(macro_store: Path) -> Model:
    return open_model(macro_store)


def counts_of(model: Model, labels: list[ScoredLabel]) -> np.ndarray:
    return np.array([int(model.predictor.memory.labels.counts[label.position]) for label in labels])


def measures(model: Model, labels: list[ScoredLabel], tail_weight: float) -> np.ndarray:
    chances = np.array([label.probability for label in labels])
    return np.asarray(chances / (counts_of(model, labels) + 1.0) ** tail_weight)


def uids(labels: list[ScoredLabel]) -> list[str]:
    return [label.uid for label in labels]


def test_labels_are_in_order_of_probability_divided_by_a_power_of_the_training_count(model: Model) -> None:
    plain = model.predict(QUERY, top_k=100, order="probability")
    for chosen in ({}, {"tail_weight": 1.0}, {"tail_weight": 0.0}):
        weight = chosen.get("tail_weight", TAIL_WEIGHT)
        labels = model.predict(QUERY, top_k=100, order="macro", **chosen)
        assert labels == [plain[row] for row in np.argsort(-measures(model, plain, weight), kind="stable")]
        assert model.predict(QUERY, top_k=3, order="macro", **chosen) == labels[:3]
    assert uids(model.predict(QUERY, order="macro", tail_weight=1.0)) != uids(plain[:10])
    assert model.predict(QUERY) == model.predict(QUERY, order="score")  # the default stays


def test_limits_and_filters_drop_labels_before_the_answer_is_cut(model: Model) -> None:
    ask = partial(model.predict, QUERY, order="macro", tail_weight=1.0)
    everything = ask(top_k=1_000)
    least = float(np.median([label.probability or 0 for label in everything[:100]]))
    assert ask(top_k=4, min_probability=least) == [e for e in everything if (e.probability or 0) >= least][:4]
    score = float(np.median([label.score for label in everything]))
    assert ask(top_k=4, threshold=score) == [label for label in everything if label.score >= score][:4]
    allowed = ask(allow=uids(everything[:6]))
    assert {*uids(allowed)} == {*uids(everything[:6])}
    assert (np.diff(measures(model, allowed, 1.0)) <= 0).all()
    assigned = ask(assign=True)
    assert assigned == everything[: len(assigned)]


def test_explanation_has_the_term_that_moves_a_label(model: Model) -> None:
    for label in model.predict(QUERY, order="macro", explain=True, top_k=5):
        (count,) = counts_of(model, [label])
        terms = [] if label.ranked_by is None else [term._asdict() for term in label.ranked_by]
        expected = {"feature": "tail_weight", "value": count, "log_odds": pytest.approx(-TAIL_WEIGHT * np.log1p(count))}
        assert terms == ([expected] if count else [])
    assert all(label.ranked_by is None for label in model.predict(QUERY, explain=True))


def test_live_label_counts_its_live_instances(macro_store: Path, tmp_path: Path) -> None:
    model = open_model(copy_store(macro_store, tmp_path / "store"), live="write")
    live = [f"sale of a house, case {number}" for number in range(3)]
    model.add(labels=[{"uid": "new", "text": "tax on the sale of a house"}])
    find = partial(model.predict, QUERY, top_k=100, order="macro", tail_weight=1.0, explain=True)
    (label,) = [each for each in find() if each.uid == "new"]
    assert label.ranked_by is None  # without instances, nothing is divided
    model.add(instances=[{"uid": text, "text": text, "labels": ["new"]} for text in live])
    (label,) = [each for each in find() if each.uid == "new"]
    assert label.ranked_by is not None
    assert label.ranked_by[-1].value == 3


def test_macro_is_refused_where_it_cannot_hold(
    predictor: LivePredictor, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QueryError, match=r"^order: probabilities hold only for the bundle's top_b"):
        model.predict(QUERY, order="macro", top_b=3)
    with pytest.raises(QueryError, match=r"^tail_weight: needs the order macro, found score; choose macro, or leave"):
        model.predict(QUERY, tail_weight=0.2)
    with pytest.raises(QueryError, match=rf"^order: version {predictor.version} gives no probabilities"):
        Model(predictor).predict(QUERY, order="macro")
    manifest = predictor.manifest.model_copy(update={"probabilities": INFO})
    monkeypatch.setattr(predictor, "manifest", manifest)
    monkeypatch.setattr(predictor, "memory", dataclasses.replace(predictor.memory, manifest=manifest))
    with pytest.raises(QueryError, match=rf"^order: version {predictor.version} has no tail_weight, because no held"):
        Model(predictor).predict(QUERY, order="macro")
    Model(predictor).predict(QUERY, order="macro", tail_weight=0.1)


def test_service_answers_in_the_order_macro(store: Path) -> None:
    make_first(store, add_version(store, "v3", "m", with_macro))
    with serving(store) as server:
        ask = partial(server.ask, "bread")
        assert server.client.get("/version").json()["defaults"]["tail_weight"] == TAIL_WEIGHT
        plain, macro = ask(top_k=50).json()["labels"], ask(top_k=50, order="macro").json()["labels"]
        assert sorted(label["uid"] for label in plain) == sorted(label["uid"] for label in macro)
        assert {label["uid"]: label["probability"] for label in plain} == {
            label["uid"]: label["probability"] for label in macro
        }
        assert ask(order="macro", tail_weight=2).status_code == 422
        refused = ask(tail_weight=0.5).json()["detail"]
        assert refused == "tail_weight: needs the order macro, found score; choose macro, or leave it out"
