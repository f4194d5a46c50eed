"""The Python API: every function, the members of a model, errors, and the scikit-learn classifier."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.core.tables.entries import PutInstance, PutLabel
from tests.contract.conftest import Work
from tests.contract.make_store import POSITIONS, TOPICS
from tests.contract.matching import differences
from tests.extras import needs_extra
from tests.processes import environment, write_lines

QUERY = "flour and yeast"
LENGTHS: dict[str, Any] = {"max_length": POSITIONS, "label_max_length": POSITIONS}


@pytest.fixture
def model(store: Path) -> Any:
    return recollect.open(store)


def test_import_is_fast_because_it_loads_no_package() -> None:
    program = "import sys, recollect; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert not {"numpy", "torch", "pydantic", "fastapi", "faiss", "onnxruntime"} & set(done.stdout.split())


def test_model_answers_one_text_and_several(model: Any, golden_version: str) -> None:
    labels = model.predict(QUERY, top_k=3)
    assert [label.uid for label in labels][0] == "bread"
    assert (labels[0].text, labels[0].because) == ("bread and flour", None)
    assert 0 < labels[0].score <= 1
    assert 0 < labels[0].probability <= 1
    assert [len(each) for each in model.predict([QUERY, "comet"], top_k=2)] == [2, 2]
    assert model.predict([]) == []
    (answer,) = model.answer(["flour " * 100], allow=["law"])
    assert (answer.truncated, answer.exhausted, len(answer.labels)) == (True, True, 1)
    assert (model.version, model.sequence) == (golden_version, 0)
    assert model.manifest.counts.labels == len(TOPICS)
    assert model.manifest.defaults.top_k == 10
    (explained,) = model.predict(QUERY, top_k=1, explain=True, order="score")
    assert math.isclose(sum(reason.share for reason in explained.because), explained.score, abs_tol=1e-6)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: model.predict(QUERY, top_k=3), range(16)))
    assert all([label.uid for label in each] == [label.uid for label in labels] for each in found)


def test_memory_of_a_model_changes(model: Any, store: Path) -> None:
    model.add(
        labels=[{"uid": "pasta", "text": "pasta"}],
        instances=[{"uid": "p1", "text": "umbrella goal cup", "labels": ["pasta"], "weight": 2}],
    )
    votes = {"order": "score", "word_weight": 0, "lambda_": 1.0, "temperature": 0.01, "top_k": 1}
    assert model.predict("umbrella goal cup", **votes)[0].uid == "pasta"
    wrong = model.learn("umbrella goal cup", "pasta", relevant=False)
    assert model.predict("umbrella goal cup", **votes)[0].uid != "pasta"
    model.forget(wrong)
    assert model.predict("umbrella goal cup", **votes)[0].uid == "pasta"
    model.remove(labels=["pasta"])
    assert not model.predict("umbrella goal cup", allow=["pasta"])
    model.add(labels=[{"uid": 2, "text": "two"}], instances=[{"uid": 1, "text": "quartz", "labels": [np.int64(2)]}])
    assert [label.uid for label in model.predict("quartz", allow=[2])] == ["2"]
    model.forget(model.learn("quartz", 2))
    model.remove(instances=[1], labels=[2])
    assert model.sequence > 0
    assert recollect.open(store).sequence == 0  # the changes were not written

    writer = recollect.open(store, live="write")
    writer.add(instances=[{"uid": "p2", "text": "quartz", "labels": ["created"]}], create_labels=True)
    assert recollect.open(store).predict("quartz", allow=["created"])
    assert not recollect.open(store, live="off").predict("quartz", allow=["created"])


def test_change_that_names_the_change_of_another_process_is_accepted_at_once(store: Path) -> None:
    one, other = (recollect.open(store, live="write") for _ in range(2))
    one.add(labels=[{"uid": "hammock", "text": "folding hammock"}])
    other.add(instances=[{"uid": "garden", "text": "hammock", "labels": ["hammock"]}])
    feedback = one.learn("canvas", "hammock")
    other.forget(feedback)
    one.remove(instances=["garden"])
    other.remove(labels=["hammock"])
    with pytest.raises(recollect.ERRORS, match="hammock"):
        one.learn("canvas", "hammock")  # the other process has just removed it
    assert one.sequence == other.sequence


def test_log_with_longer_texts_than_a_change_may_have_still_opens(store: Path) -> None:
    model = recollect.open(store, live="write")
    for change in (
        lambda text: model.add(labels=[{"uid": "long", "text": text}]),
        lambda text: model.learn(text, "pasta"),
        lambda text: model.learn(text, "pasta", relevant=False),
    ):
        with pytest.raises(recollect.ERRORS, match="20,001"):
            change("long " * 4_000 + "x")
    assert model.sequence == 0
    vector = model.predictor.encode([], ["long"])[0]
    entries = [PutLabel("long", "long " * 10_000, vector), PutInstance("long", "long " * 10_000, ["long"], vector)]
    model.predictor.log.write(lambda _: entries)
    assert recollect.open(store).predict("long", lambda_=0, top_k=1)[0].uid == "long"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: model.predict(""), "empty"),
        (lambda model: model.predict([QUERY, 5]), "5"),
        (lambda model: model.predict(QUERY, topk=3), "top_k"),
        (lambda model: model.predict(QUERY, lambda_=1.5), "lambda_"),
        (lambda model: model.predict(QUERY, temperature=0), "temperature"),
        (lambda model: model.remove(labels=["nothing"]), "nothing"),
        (lambda model: model.add(instances=[{"uid": "x", "text": "x", "labels": ["nothing"]}]), "nothing"),
        (lambda model: model.add(labels=[{"uid": "x", "text": ""}]), "text"),
        (lambda model: model.forget("nothing"), "nothing"),
        (lambda _: recollect.open("nowhere"), "nowhere"),
        (lambda _: recollect.train("nowhere", out="run"), "nowhere"),
        (lambda _: recollect.train("nowhere", out="run", max_lenght=5), "max_lenght"),
        (lambda _: recollect.train("nowhere", out="run", epochs=-1), "epochs"),
        (lambda _: recollect.tune("nowhere"), "nowhere"),
        (lambda _: recollect.build("nowhere", store="store"), "nowhere"),
        (lambda _: recollect.evaluate("nowhere", store="store"), "nowhere"),
        (lambda _: recollect.export("nowhere", out="out"), "nowhere"),
        (lambda _: recollect.predict_file("queries.jsonl", "out.jsonl", store="nowhere", colums=["id"]), "colums"),
    ],
)
def test_mistakes_raise_an_error_of_recollect_errors_with_one_line(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(recollect.ERRORS) as caught:
        call(model)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status in (1, 2)
    assert model.sequence == 0


def test_a_wrong_keyword_raises_usage_error() -> None:
    with pytest.raises(recollect.UsageError, match="max_lenght"):
        recollect.train("data", out="run", max_lenght=5)
    assert issubclass(recollect.UsageError, recollect.ERRORS)
    with pytest.raises(AttributeError, match="opne"):
        _ = recollect.opne


def test_from_a_dataset_to_answers(work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder: dict[str, Any] = {"encoder": "static", "static_from": str(work.encoder)}
    run = recollect.train(work.dataset, out=tmp_path / "run", epochs=1, validation_fraction=0.5, **encoder, **LENGTHS)
    assert run == tmp_path / "run"
    tuned = recollect.tune(run, lambda_=[0.3, 0.6], temperature=[0.05], top_b=50)
    assert {"lambda", "temperature", "top_b", "label_key_alpha", "score"} <= set(tuned)
    assert {"kept", "gains"} <= set(recollect.rank(run))
    version = recollect.build(run, store=tmp_path / "store", index="flat", activate=True)
    measured = recollect.evaluate(work.dataset, store=tmp_path / "store", lambda_=[0, 0.5])
    assert measured["version"] == version
    assert {row["lambda"] for row in measured["rows"]} >= {0, 0.5}
    assert all(0 <= row["P@1"] <= 100 and len(row["intervals"]["P@1"]) == 2 for row in measured["rows"])
    exported = recollect.export(tmp_path / "store", out=tmp_path / "exported")
    rows = (exported / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == len((work.dataset / "train.jsonl").read_text(encoding="utf-8").splitlines())
    queries = write_lines(tmp_path / "queries.jsonl", [{"id": 1, "text": QUERY}])
    flags = {"store": tmp_path / "store", "top_k": 1, "workers": 1}
    assert recollect.predict_file(queries, tmp_path / "answers.jsonl", **flags) == 1
    answer = json.loads((tmp_path / "answers.jsonl").read_text(encoding="utf-8"))
    (label,) = recollect.open(tmp_path / "store").predict(QUERY, top_k=1)
    assert not differences(answer, {"id": 1, "text": QUERY, "labels": [{"uid": label.uid, "score": label.score}]})
    assert capsys.readouterr().out == ""  # results are returned, not printed


@needs_extra("sklearn")
def test_scikit_learn_classifier(work: Work, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from recollect.sklearn import RecollectClassifier

    lines = (work.dataset / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    texts, y = [row["text"] for row in rows], [row["labels"] for row in rows]
    classifier = RecollectClassifier(
        encoder=str(work.encoder),
        max_length=POSITIONS,
        k=1,
        train_flags={"label_max_length": POSITIONS},
        build_flags={"index": "flat", "lexical": "off"},
    ).fit(texts, y)
    assert set(classifier.classes_) == set(TOPICS)
    (assigned,) = classifier.predict([texts[0]])
    assert assigned == [y[0][0]]
    probabilities = classifier.predict_proba([texts[0], "comet"])
    assert probabilities.shape == (2, len(TOPICS))
    assert probabilities.min() >= 0
    assert classifier.score(texts[:20], y[:20]) > 0.5
    classifier.save(tmp_path / "classifier")
    loaded = RecollectClassifier.load(tmp_path / "classifier")
    np.testing.assert_allclose(loaded.predict_proba(["comet"]).toarray(), probabilities[[1]].toarray(), atol=1e-6)
