"""The lexical index: exact similarities, writes while it runs, files that are mapped and checked."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.core import kernels
from recollect.core.errors import BundleError
from recollect.core.neighbours import Neighbours, join_parts
from recollect.core.words import word_index
from recollect.core.words.index import LexicalIndex, write_lexical_index
from recollect.core.words.postings import invert
from recollect.core.words.terms import Words
from recollect.core.words.word_index import WordIndex

VOCABULARY = [f"word{number}" for number in range(300)]


def random_texts(number: int, seed: int, longest: int = 12) -> list[str]:
    """Texts whose words are as unevenly frequent as the words of a language."""
    generator = np.random.default_rng(seed)
    share = 1 / np.arange(1, len(VOCABULARY) + 1)
    return [
        " ".join(generator.choice(VOCABULARY, size=generator.integers(1, longest), p=share / share.sum()))
        for _ in range(number)
    ]


def reference(texts: dict[int, str], query: str, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The similarities and rows that the written formula gives, in float64, term by term."""

    def frequencies(text: str) -> dict[int, int]:
        _, terms, counts = kernels.count_terms(*Words.of([text]).terms)
        return dict(zip(terms.tolist(), counts.tolist(), strict=True))

    documents = {row: frequencies(text) for row, text in texts.items()}
    containing = {term: sum(term in each for each in documents.values()) for term in frequencies(query)}
    weights = {
        term: (1 + np.log(number)) * np.log(1 + len(texts) / max(containing[term], 1)) ** 2
        for term, number in frequencies(query).items()
    }
    length = np.sqrt(sum(weight**2 for weight in weights.values()))
    found = []
    for row, each in documents.items():
        own = {term: (1 + np.log(number)) * (0.25 if term % 2 else 1) for term, number in each.items()}
        own_length = np.sqrt(sum(weight**2 for weight in own.values()))
        similarity = sum(weights[term] * own[term] for term in own if term in weights) / (length * own_length)
        if similarity > 0:
            found.append((-similarity, row))
    found.sort()
    return np.array([-value for value, _ in found[:top]]), np.array([row for _, row in found[:top]])


def search(index: WordIndex, query: str, top: int):
    found, _ = LexicalIndex(index, WordIndex(invert([]), 0)).search(Words.of([query]), top)
    present = found.keys[0] >= 0
    return found.similarities[0][present], found.keys[0][present]


def assert_equals_reference(index: WordIndex, texts: dict[int, str], queries: list[str], top: int = 10):
    for query in queries:
        similarities, rows = search(index, query, top)
        expected, _ = reference(texts, query, top)
        everything, all_rows = reference(texts, query, len(texts))
        np.testing.assert_allclose(similarities, expected, rtol=2e-3)  # weights are float16
        exact = dict(zip(all_rows.tolist(), everything.tolist(), strict=True))
        np.testing.assert_allclose(similarities, [exact[row] for row in rows.tolist()], rtol=2e-3)


def test_similarities_equal_the_written_formula():
    texts = random_texts(400, seed=1)
    assert_equals_reference(WordIndex(invert(texts), 400), dict(enumerate(texts)), random_texts(20, seed=2))


def test_terms_beyond_the_budget_add_the_contributions_of_the_formula(monkeypatch):
    monkeypatch.setattr(word_index, "_BUDGET", 50)
    monkeypatch.setattr(word_index, "_CANDIDATES", 1_000)
    texts = random_texts(300, seed=20)
    index = WordIndex(invert(texts[:200]), 200)
    gone = [3, 150, 205, 299]
    index = index.add(texts[200:290]).add(texts[290:]).remove(gone, [texts[row] for row in gone])
    present = {row: text for row, text in enumerate(texts) if row not in gone}
    for query in random_texts(20, seed=21):
        similarities, rows = search(index, query, 100)
        everything, all_rows = reference(present, query, len(texts))
        exact = dict(zip(all_rows.tolist(), everything.tolist(), strict=True))
        np.testing.assert_allclose(similarities, [exact[row] for row in rows.tolist()], rtol=2e-3)


def test_an_empty_index_finds_nothing_and_accepts_texts():
    index = WordIndex(invert([]), 0)
    assert len(search(index, "tea", 3)[1]) == 0
    assert search(index.add(["green tea"]), "tea", 3)[1].tolist() == [0]


def test_added_and_removed_texts_give_the_answers_of_a_new_index():
    texts, more = random_texts(200, seed=5), random_texts(100, seed=6)
    index = WordIndex(invert(texts), 200)
    for start, stop in ((0, 1), (1, 2), (2, 40), (40, 41), (41, 100)):
        index = index.add(more[start:stop])
    everything = dict(enumerate(texts + more))
    gone = [0, 7, 199, 200, 240, 299]
    index = index.remove(gone[:2], [everything[row] for row in gone[:2]])
    index = index.remove(gone, [everything[row] for row in gone])  # two rows are removed already
    present = {row: text for row, text in everything.items() if row not in gone}
    new = WordIndex(invert(present.values()), len(present))
    numbers = list(present)
    for query in random_texts(20, seed=7):
        similarities, rows = search(index, query, 15)
        expected, expected_rows = search(new, query, 15)
        np.testing.assert_array_equal(similarities, expected)
        assert rows.tolist() == [numbers[row] for row in expected_rows]
    assert_equals_reference(index, present, random_texts(5, seed=8))


def test_removing_an_unknown_row_is_refused_and_changes_nothing():
    index = WordIndex(invert(["green tea"]), 1)
    with pytest.raises(ValueError, match="expected rows from 0 to 0, found 0 to 5"):
        index.remove([0, 5], ["green tea", "x"])
    assert search(index, "tea", 3)[1].tolist() == [0]


def joined(index: LexicalIndex, texts: list[str], lambda_: float) -> Neighbours:
    """The keys that vote by words, at most 8 for each text."""
    return join_parts(*index.search(Words.of(texts), 8), len(index.instances), 8, lambda_)


def test_files_give_the_index_of_the_same_texts_and_number_keys_as_the_memory(tmp_path):
    instances, labels = random_texts(50, seed=12), random_texts(20, seed=13)
    write_lexical_index(tmp_path, iter(instances), iter(labels))
    opened, built = LexicalIndex.open(tmp_path, 50, 20), LexicalIndex.of_texts(instances, labels)
    queries = random_texts(5, seed=14)
    found = joined(opened, [*queries, "unknown"], 0.5)
    similarities, keys = found.similarities, found.keys
    np.testing.assert_array_equal(keys, joined(built, [*queries, "unknown"], 0.5).keys)
    assert (keys[-1] == -1).all()
    assert np.isneginf(similarities[-1]).all()
    assert (similarities[:-1, 1:] <= similarities[:-1, :-1]).all()
    labels_only, instances_only = (joined(opened, queries, lambda_).keys for lambda_ in (0, 1))
    assert (instances_only < 50).all()
    assert (labels_only[labels_only >= 0] >= 50).all()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("instance_words.rows.npy", lambda rows: rows.__setitem__(3, 50), "expected a position from 0 to 49, found 50"),
        ("instance_words.rows.npy", lambda rows: rows.__setitem__(3, -1), "expected a position from 0 to 49, found -1"),
        ("instance_words.offsets.npy", lambda offsets: offsets.__setitem__(-1, 10**9), "expected offsets from 0 to"),
        ("label_words.offsets.npy", lambda offsets: offsets.__setitem__(1, 10**6), "expected an end at or after"),
        ("label_words.terms.npy", lambda terms: terms.__setitem__(2, 0), "row 2: expected a greater hash than"),
        ("label_words.weights.npy", lambda weights: weights.__setitem__(4, 1.5), "row 4: expected a weight from 0 to"),
        ("label_words.weights.npy", lambda weights: weights.__setitem__(4, np.nan), "expected a weight from 0 to"),
        ("label_words.weights.npy", lambda weights: weights.__setitem__(4, -0.5), "expected a weight from 0 to"),
    ],
)
def test_forged_files_are_refused(tmp_path, file, change, message):
    write_lexical_index(tmp_path, random_texts(50, seed=15), random_texts(20, seed=16))
    content = np.load(tmp_path / file)
    change(content)
    np.save(tmp_path / file, content)
    with pytest.raises(BundleError, match=message) as raised:
        LexicalIndex.open(tmp_path, 50, 20)
    assert file in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"not an array", None])
def test_an_unreadable_file_is_refused(tmp_path, content):
    write_lexical_index(tmp_path, random_texts(5, seed=17), random_texts(5, seed=18))
    path = tmp_path / "label_words.terms.npy"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleError, match=r"label_words\.terms\.npy"):
        LexicalIndex.open(tmp_path, 5, 5)
