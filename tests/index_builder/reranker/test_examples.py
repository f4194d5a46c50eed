"""Examples for the ranker: a query's whole fold is out of the memory, and every candidate is an example."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from recollect.core.words.index import LexicalIndex
from recollect.core.words.terms import Words
from recollect.index_builder.reranker.examples import Examples, ExampleSource
from recollect.trainer.memory.label_keys import LabelKeys
from recollect.trainer.memory.memory import Memory, open_memory, write_defaults
from tests.trainer.helpers import random_sets, random_units
from tests.trainer.test_tune import make_run, sets_of

INSTANCES, LABELS = 60, 20
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def random_memory(folder: Path, alpha: float) -> Memory:
    """A memory with random keys and texts of random words; label l has the text of one or two words."""
    rng = np.random.default_rng(0)
    make_run(folder, random_units(rng, INSTANCES + LABELS, 8), random_sets(rng, INSTANCES, LABELS))
    texts = [" ".join(rng.choice(WORDS, size=6)) for _ in range(INSTANCES)]
    names = [" ".join(rng.choice(WORDS, size=1 + label % 2)) for label in range(LABELS)]
    for part, content in (("instances", texts), ("labels", names)):
        lines = [json.dumps({"uid": str(row), "text": text}) + "\n" for row, text in enumerate(content)]
        (folder / "memory" / f"{part}.jsonl").write_text("".join(lines))
    memory = open_memory(folder / "memory")
    write_defaults(memory.folder, memory.plan, {**memory.defaults, "top_b": 15, "label_key_alpha": alpha})
    return open_memory(memory.folder)


def texts_of(memory: Memory, part: str) -> list[str]:
    return [json.loads(line)["text"] for line in (memory.folder / f"{part}.jsonl").read_text().splitlines()]


def column(examples: Examples, name: str) -> np.ndarray:
    return examples.features[:, examples.names.index(name)]


@pytest.mark.parametrize("alpha", [0, 0.5])
def test_features_come_from_a_memory_without_the_whole_fold(tmp_path: Path, alpha: float) -> None:
    memory = random_memory(tmp_path, alpha)
    rows, fold = np.arange(0, INSTANCES, 2), np.arange(INSTANCES // 2) % 3
    examples = ExampleSource(memory, with_words=True).cross(rows, fold)
    keys, sets = np.asarray(memory.keys), sets_of(memory)
    for number, row in enumerate(rows.tolist()):
        absent = set(rows[fold == fold[number]].tolist())
        present = [other for other in range(INSTANCES) if other not in absent]
        nearest = sorted(present, key=lambda other: -(keys[other] @ keys[row]))[:15]
        kept = np.isin(np.arange(INSTANCES), present)
        label_keys = LabelKeys(keys[INSTANCES:], keys[:INSTANCES], memory.label_sets.where(kept), alpha).filled()
        own = examples[examples.query == number]
        for nth, label in enumerate(own.label.tolist()):
            similarities = [float(keys[other] @ keys[row]) for other in nearest if label in sets[other]]
            expected = [
                sum(label in sets[other] for other in present),
                len(similarities),
                max(similarities, default=np.nan),
            ]
            found = [column(own, name)[nth] for name in ("training_count", "instance_count", "instance_similarity")]
            np.testing.assert_allclose(found, expected, rtol=1e-5)
            similarity = column(own, "label_similarity")[nth]
            assert np.isnan(similarity) or np.isclose(similarity, label_keys[label] @ keys[row], atol=1e-5)


def test_words_come_from_an_index_without_the_whole_fold(tmp_path: Path) -> None:
    memory = random_memory(tmp_path, 0)
    rows, fold = np.arange(INSTANCES), np.arange(INSTANCES) % 2
    examples = ExampleSource(memory, with_words=True).cross(rows, fold)
    texts, labels, sets = texts_of(memory, "instances"), texts_of(memory, "labels"), sets_of(memory)
    for number in (0, 1):
        own = examples[examples.query == number]
        present = [row for row in range(INSTANCES) if fold[row] != fold[number]]
        index = LexicalIndex.of_texts([texts[row] for row in present], labels)
        found, _ = index.search(Words.of([texts[number]]))
        for label, best in zip(own.label.tolist(), column(own, "word_instance_similarity").tolist(), strict=True):
            votes = [
                float(similarity)
                for similarity, key in zip(found.similarities[0], found.keys[0].tolist(), strict=True)
                if key >= 0 and label in sets[present[key]]
            ]
            np.testing.assert_allclose(best, max(votes, default=np.nan), rtol=1e-4)


def test_labels_that_are_removed_from_answers_are_no_examples(tmp_path: Path) -> None:
    memory = random_memory(tmp_path, 0)
    rows, fold = np.arange(INSTANCES), np.arange(INSTANCES) % 3
    before = ExampleSource(memory, with_words=True).cross(rows, fold)
    filtered = np.column_stack([before.query[::7], before.label[::7]]).astype(np.int64)
    after = ExampleSource(dataclasses.replace(memory, filtered_pairs=filtered), with_words=True).cross(rows, fold)
    kept = set(zip(before.query.tolist(), before.label.tolist(), strict=True)) - set(map(tuple, filtered.tolist()))
    assert set(zip(after.query.tolist(), after.label.tolist(), strict=True)) == kept
