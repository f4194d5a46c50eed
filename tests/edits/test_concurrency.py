"""Readers use one view from the beginning to the end of an answer, while a writer replaces it."""

from __future__ import annotations

import threading

import numpy as np

from recollect.core.options import AnswerOptions
from recollect.core.tables.entries import PutInstance, PutLabel, Remove
from tests.edits.conftest import Open, random_tables, random_vectors
from tests.edits.rebuilt import logged

OPTIONS = AnswerOptions(lambda_=0.5, temperature=0.1, top_b=60, top_k=100, explain=True, word_weight=0.3)


def test_readers_never_see_half_of_a_change(open_tables: Open) -> None:
    """Each change inserts a label with one instance, and removes those of the change before it."""
    rng = np.random.default_rng(2)
    live = open_tables(random_tables(rng), words=True)
    (vector,) = random_vectors(rng, 1)
    errors: list[object] = []
    stopped = threading.Event()

    def change(number: int) -> None:
        entries = [
            PutLabel("moving label", f"text {number}", vector),
            PutInstance(f"moving {number}", f"word text {number}", ["moving label"], vector),
            Remove("instance", f"moving {number - 1}"),
        ]
        live.apply(logged(entries, after=3 * number))

    def read() -> None:
        try:
            while not stopped.is_set():
                (answer,) = live.answer(vector[None], OPTIONS, ["word text"])
                (label,) = (label for label in answer.labels if label.uid == "moving label")
                number = label.text.removeprefix("text ")
                found = {(term.kind, term.uid, term.text) for term in label.because or []}
                expected = {
                    ("label", "moving label", f"text {number}"),
                    ("instance", f"moving {number}", f"word text {number}"),
                }
                assert found == expected
        except Exception as error:
            errors.append(error)

    change(0)
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 150):
        change(number)
    stopped.set()
    for reader in readers:
        reader.join()
    assert not errors
