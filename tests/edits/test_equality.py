"""A memory with live entries answers as a bundle that was built from the merged data does."""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from recollect.core.answers import Stopwatch
from recollect.core.options import AnswerOptions
from recollect.core.predictor import Predictor
from recollect.core.search import filters
from recollect.core.tables.entries import PutCorrection, PutInstance, PutLabel, Remove
from tests.edits.conftest import Open, random_tables, random_texts, random_vectors
from tests.edits.rebuilt import Tables, largest_difference, logged, random_entries

OPTIONS = AnswerOptions(lambda_=0.3, temperature=0.1, top_b=40, top_k=100, explain=True)


def ask(predictor: Predictor, queries: list[str], vectors: np.ndarray, options: AnswerOptions) -> list:
    if not options.filtered:
        return predictor.answer(vectors, options, queries)
    memory = predictor.memory
    answers = []
    for nth, query in enumerate(queries):  # a query with a filter is answered alone
        admitted = memory.filters.of(options)
        one = vectors[nth : nth + 1]
        answers += predictor._answer(memory, [query], one, [False], options, admitted, Stopwatch())
    return answers


def assert_equal(live: Predictor, rebuilt: Predictor, seed: int, options: AnswerOptions) -> None:
    rng = np.random.default_rng(seed)
    queries, vectors = random_texts(rng, 6), random_vectors(rng, 6)
    expected = ask(rebuilt, queries, vectors, options)
    assert any(answer.labels for answer in expected)
    assert largest_difference(ask(live, queries, vectors, options), expected) < 1e-6


def changed(open_tables: Open, seed: int, count: int, **options: Any) -> tuple[Predictor, Predictor, Tables]:
    """A memory with random entries, the bundle with the same content, and this content."""
    rng = np.random.default_rng(seed)
    tables = random_tables(rng)
    live = open_tables(tables, **options)
    entries = logged(random_entries(rng, tables, random_texts(rng, count), random_vectors(rng, count)))
    start = 0
    while start < count:  # batches of several sizes
        stop = start + int(rng.integers(1, 12))
        assert live.apply(entries[start:stop]).sequence == min(stop, count)
        start = stop
    return live, open_tables(tables, **options), tables


def test_a_request_keeps_the_memory_with_which_it_started(open_tables: Open, ranker: str) -> None:
    rng = np.random.default_rng(5)
    tables = random_tables(rng)
    live = open_tables(tables, words=True, ranker=ranker)
    entries = logged(random_entries(rng, tables, random_texts(rng, 160), random_vectors(rng, 160)))
    queries, vectors = random_texts(rng, 12), random_vectors(rng, 12)
    options = dataclasses.replace(OPTIONS, word_weight=0.4, order="probability")
    before = []
    for start in range(0, 160, 40):
        memory = live.apply(entries[start : start + 40])
        before.append((memory, live.answer(vectors, options, queries)))
    for memory, answers in before:
        assert live.answer(vectors, options, queries, memory) == answers


def test_answers_equal_those_of_a_rebuilt_bundle(open_tables: Open, ranker: str) -> None:
    live, rebuilt, tables = changed(open_tables, 1, 160, words=True, ranker=ranker)
    memory = live.memory.snapshot
    assert (memory.instances.present, memory.skipped) == (len(tables.instances), 0)
    assert np.count_nonzero(memory.labels.present()) == len(tables.labels)
    some = [*tables.labels][::3]
    for options in (
        {},
        {"word_weight": 0.4},
        {"word_weight": 0.4, "order": "probability"},
        {"order": "probability", "top_b": 1_000},
        {"allow": tuple(some), "word_weight": 0.4},
        {"deny": (*some, "label 1", "unknown"), "order": "probability"},
        {"top_b": 3, "threshold": 0.05},
    ):
        for lambda_ in (0.0, 0.3, 1.0):
            assert_equal(live, rebuilt, 2, dataclasses.replace(OPTIONS, lambda_=lambda_, **options))


def test_answers_equal_without_a_lexical_index_and_a_ranker(
    open_on_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MAX_CHEAP_VOTES", 20)  # searches run for filters, too
    live, rebuilt, tables = changed(open_on_engine, 3, 120)
    for top_b in (3, 40, 1_000):
        assert_equal(live, rebuilt, 3, dataclasses.replace(OPTIONS, top_b=top_b))
    no_explanation = dataclasses.replace(OPTIONS, explain=False, lambda_=0.5)
    assert_equal(live, rebuilt, 3, dataclasses.replace(no_explanation, allow=tuple([*tables.labels][:9]), top_k=5))
    assert_equal(live, rebuilt, 3, dataclasses.replace(no_explanation, deny=tuple([*tables.labels][:9]), top_k=5))


def test_search_repeats_if_most_of_the_nearest_keys_were_removed(open_on_engine: Open) -> None:
    rng = np.random.default_rng(6)
    tables = random_tables(rng)
    live, query = open_on_engine(tables), random_vectors(rng, 1)
    near = sorted(tables.instances, key=lambda uid: -float(tables.instances[uid][2] @ query[0]))[:120]
    entries = [Remove("instance", uid) for uid in near]
    for entry in entries:
        tables.apply(entry)
    live.apply(logged(entries))
    rebuilt = open_on_engine(tables)
    options = dataclasses.replace(OPTIONS, top_b=5)
    assert largest_difference(live.answer(query, options), rebuilt.answer(query, options)) < 1e-6


@pytest.mark.parametrize("words", [False, True])
def test_memory_of_live_entries_is_counted(open_tables: Open, words: bool) -> None:
    rng = np.random.default_rng(17)
    live = open_tables(random_tables(rng), words=words)
    plug = "\N{ELECTRIC PLUG}"  # a text with it has 4 bytes for each character in memory
    texts = [f"{plug} {nth} " + " ".join(map(str, rng.integers(10_000, size=1_000))) for nth in range(120)]
    vectors = random_vectors(rng, len(texts))
    texts_bytes = sum(map(sys.getsizeof, texts))

    def entries(kind: type) -> list:
        rows = enumerate(zip(texts, vectors, strict=True))
        if kind is PutLabel:
            return [PutLabel(f"new {nth}", text, vector) for nth, (text, vector) in rows]
        return [kind(f"new {nth}", text, ["label 1"], vector) for nth, (text, vector) in rows]

    for kind in (PutInstance, PutLabel):
        after = live.memory.snapshot.live_bytes
        logged_entries = logged(entries(kind), after=live.memory.sequence)
        tracemalloc.start()
        live.apply(logged_entries)
        live.answer(vectors[:1], OPTIONS, texts[:1])  # a search copies the words
        allocated = texts_bytes + tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        # The count takes a copy of the words for granted, which only some searches make.
        assert 0.5 < (live.memory.snapshot.live_bytes - after) / allocated < 2


def test_entries_with_unknown_labels_are_skipped_and_counted(open_tables: Open) -> None:
    rng = np.random.default_rng(11)
    live = open_tables(random_tables(rng))
    vectors = random_vectors(rng, 2)
    entries = [
        PutInstance("a", "text", ["gone"], vectors[0]),
        PutInstance("b", "text", ["gone", "label 1"], vectors[1]),
        Remove("label", "gone"),
        Remove("instance", "gone"),
    ]
    live.apply(logged(entries))
    memory = live.memory.snapshot
    assert (memory.skipped, memory.instance("a"), memory.instance("b")) == (2, None, 150)


def test_skipped_entry_removes_the_row_that_it_replaces(open_tables: Open) -> None:
    rng = np.random.default_rng(12)
    live = open_tables(random_tables(rng))
    vectors = random_vectors(rng, 3)
    live.apply(
        logged([PutCorrection("c", "query", "label 1", vectors[0]), PutInstance("a", "a", ["label 1"], vectors[1])])
    )
    entries = [
        PutCorrection("c", "query", "gone", vectors[0]),
        PutInstance("a", "a", ["gone"], vectors[1]),
        PutInstance("instance 3", "of the bundle", ["gone"], vectors[2]),
    ]
    live.apply(logged([Remove("label", "none"), Remove("label", "none"), *entries])[2:])
    memory = live.memory.snapshot
    assert (memory.skipped, memory.corrections.rows.present) == (3, 0)
    assert (memory.instance("a"), memory.instance("instance 3")) == (None, None)
