"""The Python API: `add`, `remove`, `learn` and `forget` change the memory of an open model, and refuse wrong input."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from recollect.service.errors import UnknownUidError
from recollect.service.model import Model, open_model

QUERY = "A sourdough loaf needs flour, water and salt"


@pytest.fixture
def model(built: Any) -> Model:
    return open_model(built.store, built.version)


def best(model: Model, query: str = QUERY) -> str:
    return model.predict(query)[0].uid


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
