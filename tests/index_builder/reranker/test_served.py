"""Answers of a version with a ranker: order, filters, explanations and batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import recollect
from recollect.core.errors import BundleError
from recollect.core.reranker.calibration import calibrate
from recollect.core.reranker.candidates import ALL_FEATURES
from recollect.core.reranker.model import RankerModel
from recollect.model import Model, open_model
from tests.index_builder.reranker.conftest import NAMES, RankedRun

QUERIES = ["amber instead of basil", "lemon unlike kelp", "something else", "jade and also ivory"]


@pytest.fixture(scope="module")
def model(ranked: RankedRun) -> Model:
    return open_model(ranked.store)


def uids(labels: list) -> list[str]:
    return [label.uid for label in labels]


def test_probabilities_fall_and_scores_are_the_votes(model: Model) -> None:
    for query in QUERIES:
        labels = model.predict(query, top_k=12)
        chances = [label.probability or 0 for label in labels]
        assert chances == sorted(chances, reverse=True)
        votes = {label.uid: label.score for label in model.predict(query, top_k=12, order="score")}
        assert {label.uid: label.score for label in labels} == {uid: votes.get(uid, 0) for uid in uids(labels)}


def test_filters_keep_the_order_of_the_ranker(model: Model) -> None:
    for query in QUERIES:
        everything = uids(model.predict(query, top_k=12))
        allowed = model.predict(query, top_k=12, allow=NAMES[:6])
        assert uids(allowed) == [uid for uid in everything if uid in NAMES[:6]]
        denied = model.predict(query, top_k=3, deny=everything[:2])
        assert uids(denied) == everything[2:5]


def test_explanations_add_up_to_the_score_and_to_the_logit(model: Model) -> None:
    assert model.manifest.probabilities is not None
    info = model.manifest.probabilities
    for place, label in enumerate(model.predict(QUERIES[0], top_k=4, explain=True)):
        assert label.because is not None
        assert label.ranked_by is not None
        assert sum(reason.share for reason in label.because) == pytest.approx(label.score)
        logit = np.array([sum(term.log_odds for term in label.ranked_by)])
        first = info.first_calibration if place == 0 else None
        expected = calibrate(first or info.calibration, logit)
        assert label.probability == pytest.approx(float(expected[0]))
        content = label.to_dict()["ranked_by"]
        assert {"feature", "value", "log_odds"} == set(content[0])
        assert [abs(term["log_odds"]) for term in content] == sorted(
            (abs(term["log_odds"]) for term in content), reverse=True
        )


def test_macro_adds_its_term_to_the_explanation(model: Model) -> None:
    plain = {label.uid: label for label in model.predict(QUERIES[0], top_k=12, explain=True)}
    for label in model.predict(QUERIES[0], top_k=12, order="macro", explain=True):
        assert label.ranked_by is not None
        *terms, term = label.ranked_by
        assert terms == plain[label.uid].ranked_by
        assert (term.feature, label.probability) == ("tail_weight", plain[label.uid].probability)
        assert term.value == model.predictor.memory.labels.counts[label.position]


def test_evaluate_measures_each_order(ranked: RankedRun, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", str(ranked.run.parent / "dataset"), "--store", str(ranked.store)]
    assert recollect.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["order"] for row in found["rows"]] == ["score", "probability", "macro"]
    assert [row["order"] for row in found["differences"]] == ["probability - score", "macro - score"]
    for row in found["rows"]:
        assert 0 < row["macro F1@5"] <= row["coverage@5"] <= 100
    assert recollect.main([*command, "--intervals"]) == 0
    table = capsys.readouterr().out
    assert "gain, macro" in table
    assert "coverage@5" in table


def test_predict_prints_twelve_votes_and_five_terms_for_a_label_and_all_on_request(
    ranked: RankedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*flags: str) -> list[str]:
        command = ["predict", QUERIES[0], "--store", str(ranked.store), "--top-k", "1", "--explain", *flags]
        assert recollect.main(command) == 0
        return capsys.readouterr().out.splitlines()

    (label,) = json.loads(printed("--json")[0])["labels"]
    lines = [[line for line in printed(*flags) if line.startswith("    ")] for flags in ([], ["--all-votes"])]
    few, every = ([line for line in each if "log-odds" in line] for each in lines)
    assert len(every) == len(label["ranked_by"]) > 6
    assert few[:5] == every[:5]
    rest = sum(term["log_odds"] for term in label["ranked_by"][5:])
    assert few[5:] == [f"    {rest:+.4f}  log-odds by {len(every) - 5} more features; --all-votes prints them"]
    few, every = ([line for line in each if "log-odds" not in line] for each in lines)
    assert len(every) == len(label["because"]) > 13
    assert few[:12] == every[:12]
    rest = sum(reason["share"] for reason in label["because"][12:])
    assert few[12:] == [f"    {rest:.4f}  {len(every) - 12} more votes; --all-votes prints them"]


@pytest.mark.parametrize(("flags", "found"), [([], "no --explain"), (["--explain", "--json"], "--json")])
def test_all_votes_without_printed_votes_is_refused(
    ranked: RankedRun, capsys: pytest.CaptureFixture[str], flags: list[str], found: str
) -> None:
    assert recollect.main(["predict", "amber", "--store", str(ranked.store), "--all-votes", *flags]) == 2
    out, err = capsys.readouterr()
    message = f"--all-votes: expected --explain for one query, without --json, found {found}; omit the flag"
    assert (out, err) == ("", f"recollect predict: {message}\n")


def test_a_ranker_with_an_unknown_feature_is_refused(ranked: RankedRun, tmp_path: Path) -> None:
    content = json.loads((ranked.run / "memory" / "ranker" / "ranker.json").read_text())
    content["features"][0] = "phase_of_the_moon"
    path = tmp_path / "ranker.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BundleError, match="found phase_of_the_moon; fit the ranker again"):
        RankerModel.open(path, ALL_FEATURES)
