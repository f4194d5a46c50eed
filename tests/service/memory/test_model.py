"""The Python API: `add`, `remove`, `learn` and `forget` change the memory of an open model, and refuse wrong input."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from recollect.service.errors import ChangeError, QueryError, UnknownUidError
from recollect.service.model import Model, open_model
from recollect.service.predictor.predictor import Predictor
from tests.service.milvus.milvus_bundles import engine_at

QUERY = "A sourdough loaf needs flour, water and salt"
BREAD = {"uid": "bread", "text": "Bread and baking"}


@pytest.fixture(params=["faiss", "milvus"])
def model(request: pytest.FixtureRequest, built: Any) -> Model:
    """The same memory, with its keys in files and in Milvus."""
    if request.param == "faiss":
        return open_model(built.store, built.version)
    bundle, uri = request.getfixturevalue("milvus_predictor").bundle, request.getfixturevalue("milvus_uri")
    return Model(Predictor.open(bundle, 1, engine=engine_at(uri)))


def best(model: Model, query: str = QUERY) -> str:
    return model.predict(query)[0].uid


def test_added_label_answers_from_the_next_query_on_until_it_is_removed(model: Model) -> None:
    before = model.predict(QUERY, explain=True)
    assert model.sequence == 0
    assert model.add(labels=[BREAD], instances=[{"uid": "loaf", "text": QUERY, "labels": ["bread"]}]) == 2
    label = model.predict(QUERY, explain=True)[0]
    assert (label.uid, label.text) == ("bread", "Bread and baking")
    assert {(term.kind, term.uid, term.text) for term in label.because or []} == {
        ("label", "bread", "Bread and baking"),
        ("instance", "loaf", QUERY),
    }
    assert model.remove(labels=["bread"]) == 3
    assert model.predict(QUERY, explain=True) == before
    with pytest.raises(UnknownUidError, match="'loaf'"):  # it had no other label
        model.remove(instances=["loaf"])


def test_instance_and_label_may_have_the_same_uid(model: Model) -> None:
    model.add(labels=[BREAD], instances=[{"uid": "bread", "text": QUERY, "labels": ["bread"]}])
    model.remove(instances=["bread"])
    assert best(model) == "bread"


def test_labels_of_instances_are_created_on_request(model: Model) -> None:
    model.add(instances=[{"uid": "loaf", "text": QUERY, "labels": ["baking", "baking"]}], create_labels=True)
    label = model.predict(QUERY)[0]
    assert (label.uid, label.text) == ("baking", "baking")


def test_feedback_changes_answers_and_is_undone_exactly(model: Model) -> None:
    before = model.predict(QUERY, explain=True)
    first, other = before[0].uid, before[-1].uid
    confirmed, rejected = model.learn(QUERY, other), model.learn(QUERY, first, relevant=False)
    assert best(model) == other
    assert first not in {label.uid for label in model.predict(QUERY, threshold=1e-9)}
    model.forget(rejected)
    model.forget(confirmed)
    assert model.predict(QUERY, explain=True) == before
    for uid in (confirmed, "unknown", "loaf"):
        with pytest.raises(UnknownUidError, match="expected the id of a feedback"):
            model.forget(uid)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instances": [{"uid": "a", "text": "b", "labels": ["x", "y"]}]}, "found 2 unknown: 'x', 'y'"),
        ({"instances": [{"uid": "a", "text": "b", "labels": []}]}, r"instances\[0\].labels: expected at least one"),
        ({"instances": [{"uid": "a", "labels": ["x"]}]}, r"instances\[0\].text: required"),
        (
            {"instances": [{"uid": "a", "text": [0.1], "labels": ["x"]}]},
            r"text: expected a valid string, found \[0.1\]",
        ),
        ({"instances": [{"uid": "a", "text": "b", "labels": ["x"], "vector": [1.0]}]}, "takes no vectors"),
        ({"instances": [{"uid": "a", "text": "b", "labels": ["x"], "weight": 0}]}, "weight: expected greater than 0"),
        ({"instances": {"uid": "a"}}, "instances: expected a list"),
        ({"instances": ["a"]}, r"instances\[0\]: expected a dict, found 'a'"),
        ({"labels": [BREAD, BREAD]}, "labels: expected each uid once, found several times: 'bread'"),
        ({"labels": [BREAD, {"uid": "x", "text": " "}]}, r"labels\[1\].text: the text is empty"),
        ({"labels": [{"uid": "", "text": "x"}]}, r"labels\[0\].uid"),
        ({"labels": [{"uid": "x", "text": "x" * 1_000_001}]}, "the text has 1,000,001 bytes"),
        ({"labels": [{"uid": "x", "text": "\ud800"}]}, "half of a surrogate pair"),
    ],
)
def test_wrong_change_is_refused_and_nothing_is_changed(model: Model, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ChangeError, match=message):
        model.add(**change)
    assert model.sequence == 0


def test_wrong_removal_and_wrong_feedback_are_refused(model: Model) -> None:
    known = model.predict(QUERY)[0].uid
    with pytest.raises(UnknownUidError, match="labels: expected uids of the memory, found 1 unknown: 'x'"):
        model.remove(labels=[known, "x"])
    with pytest.raises(ChangeError, match="labels: expected each uid once"):
        model.remove(labels=[known, known])
    with pytest.raises(ChangeError, match="labels: expected a list"):
        model.remove(labels=known)
    with pytest.raises(ChangeError, match="expected a label of the memory, found 'x'"):
        model.learn(QUERY, "x")
    with pytest.raises(QueryError, match="empty"):
        model.learn(" ", known)
    assert model.sequence == 0


def test_changes_of_several_threads_are_all_made(model: Model) -> None:
    def add(name: str) -> None:
        for nth in range(5):
            model.add(labels=[{"uid": f"{name} {nth}", "text": f"{name} {nth}"}])

    writers = [threading.Thread(target=add, args=(name,)) for name in ("flour", "water", "salt")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert model.sequence == 15
    names = [f"{name} {nth}" for name in ("flour", "water", "salt") for nth in range(5)]
    assert {label.uid for label in model.predict(QUERY, allow=names, top_k=100, lambda_=0.0)} == set(names)
