"""Probabilities in answers: their order, the options that need them, and their metrics."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.bundle.manifest import Isotonic, Probabilities
from recollect.core.errors import QueryError
from recollect.core.options import resolve_options
from recollect.core.reranker.assign import expected_f1
from recollect.core.reranker.calibration import calibrate, log_odds
from recollect.edits.live import LivePredictor
from recollect.model import Model
from tests.processes import serving
from tests.service.stores import add_version, make_first

QUERY = "Who must pay tax on the sale of a house"
INFO = Probabilities(
    calibration=Isotonic(logits=(-9.0, -2.0, 2.0), probabilities=(0.01, 0.3, 0.8)),
    texts=200,
    metrics={"ECE@1": 0.02, "ECE@5": 0.01, "Brier": 0.9},
    mean_top_probability=0.6,
)


@pytest.fixture
def model(predictor: LivePredictor, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The topics, with a calibration of the scores."""
    return calibrated(predictor, monkeypatch, INFO)


def calibrated(predictor: LivePredictor, monkeypatch: pytest.MonkeyPatch, info: Probabilities) -> Model:
    manifest = predictor.manifest.model_copy(update={"probabilities": info})
    monkeypatch.setattr(predictor, "manifest", manifest)
    monkeypatch.setattr(predictor, "memory", dataclasses.replace(predictor.memory, manifest=manifest))
    return Model(predictor)


def test_probability_of_a_label_is_the_calibrated_log_odds_of_its_score(model: Model) -> None:
    for label in model.predict(QUERY):
        assert label.probability is not None
        (expected,) = calibrate(INFO.calibration, log_odds([label.score]))  # type: ignore[arg-type]
        assert label.probability == pytest.approx(expected)
        assert label.to_dict()["probability"] == label.probability


def test_first_label_has_its_own_calibration_unless_a_filter_applies(
    predictor: LivePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Isotonic(logits=(-9.0, 2.0), probabilities=(0.85, 0.95))
    info = INFO.model_copy(update={"first_calibration": first})
    model = calibrated(predictor, monkeypatch, info)
    best, *others = model.predict(QUERY)
    (expected,) = calibrate(first, log_odds(np.array([best.score])))
    assert best.probability == pytest.approx(expected)
    for label in [*others, *model.predict(QUERY, deny=[best.uid])]:
        assert label.probability is not None
        assert label.probability <= 0.8


def test_bundle_without_a_calibration_answers_without_probabilities(predictor: LivePredictor) -> None:
    for label in Model(predictor).predict(QUERY):
        assert label.probability is None
        assert "probability" not in label.to_dict()


def test_assigned_labels_are_the_best_set_and_equal_in_a_batch(model: Model) -> None:
    everything = model.predict(QUERY, top_k=1000)
    probabilities = [[label.probability or 0.0 for label in everything]]
    size = 1 + int(expected_f1(np.array(probabilities)).argmax())
    assert model.predict(QUERY, assign=True) == everything[:size]
    together = model.predict([QUERY, "galaxies"], assign=True)[0]
    assert [label.uid for label in together] == [label.uid for label in everything[:size]]
    assert model.predict(QUERY, assign=True, top_k=1) == everything[:1]
    assert model.predict(QUERY, assign=True, min_probability=1.0) == []


@pytest.mark.parametrize("options", [{"assign": True}, {"min_probability": 0.1}, {"order": "probability"}])
def test_option_that_needs_probabilities_is_refused_where_there_are_none(
    predictor: LivePredictor, model: Model, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(options))
    for other in ({"lambda_": 0.25}, {"temperature": 0.5}, {"top_b": 3}):
        with pytest.raises(
            QueryError, match=rf"^{name}: probabilities hold only for the bundle's {next(iter(other)).rstrip('_')}"
        ):
            model.predict(QUERY, **options, **other)  # type: ignore[arg-type]
    model.predict(QUERY, **options, lambda_=predictor.defaults.lambda_)
    monkeypatch.undo()
    with pytest.raises(QueryError, match=rf"^{name}: version {predictor.version} gives no probabilities"):
        model.predict(QUERY, **options)


def test_order_of_a_bundle_with_a_ranker_is_the_probability_only_with_the_default_votes(
    predictor: LivePredictor,
) -> None:
    ranked = predictor.defaults.model_copy(update={"order": "probability"})
    assert resolve_options(ranked).order == resolve_options(ranked, top_b=ranked.top_b).order == "probability"
    assert resolve_options(ranked, top_b=3).order == resolve_options(ranked, order="score").order == "score"
    assert resolve_options(predictor.defaults).order == "score"


def with_probabilities(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: it gives probabilities."""
    manifest["probabilities"] = json.loads(INFO.model_dump_json())


def test_service_answers_with_probabilities_and_measures_them(store: Path) -> None:
    make_first(store, add_version(store, "v3", "p", with_probabilities))
    with serving(store, "--assign-threshold", "0.999") as server:
        ask = partial(server.ask, "bread")
        plain = ask().json()["labels"]
        assert [list(label) for label in plain] == [["uid", "name", "text", "score", "probability"]] * 3
        top = plain[0]["probability"]
        assert ask(assign=True).json()["labels"] == []  # --assign-threshold
        assigned = ask(assign=True, min_probability=0).json()["labels"]
        assert assigned == ask(assign=True, min_probability=0.01).json()["labels"]
        assert assigned[:3] == plain
        assert ask(min_probability=top).json()["labels"] == plain[:1]
        refused = ask(assign=True, top_b=3)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert refused.json()["detail"].startswith(
            "assign: probabilities hold only for the bundle's top_b 200, found 3"
        )
        assert server.client.get("/version").json()["probabilities"] == json.loads(INFO.model_dump_json())
