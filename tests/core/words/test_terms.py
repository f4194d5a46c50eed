"""Terms of texts in many scripts."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest

from recollect.core import kernels
from recollect.core.words.terms import MAX_CHARACTERS, Words, hash_word, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A garden, a Chair!", ["a", "garden", "a", "chair"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("caf\u00e9 cafe\u0301 CAFÉ", ["café", "café", "café"]),
        ("C++ foo_bar 3.5", ["c", "foo", "bar", "3", "5"]),
        ("Kraftfahrzeug-Haftpflicht", ["kraftfahrzeug", "haftpflicht"]),
        ("日本語 text", ["日", "本", "語", "text"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("Привет, мир", ["привет", "мир"]),
        ("ﬁsh ＡＢＣ", ["fish", "abc"]),
        ("\u0000\u200b ...", []),
        ("a\x1fB\x7f_c", ["a", "b", "c"]),
        ("", []),
    ],
)
def test_words_of_any_script_are_found(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("form", "other"),
    [("taxation", "taxa"), ("Bibliothek", "Bibliotheken"), ("wirtschaftlich", "Wirtschaft"), ("kirjasto", "kirjastot")],
)
def test_forms_of_a_word_have_one_stem_in_many_languages(form: str, other: str) -> None:
    found = Words.of([f"{form} {other}"])
    assert found.hashes[0] != found.hashes[1]
    assert (found.stems[0] == found.stems[1]) == (len(other) > 4)


def test_terms_are_words_and_ordered_pairs_of_neighbours():
    offsets, terms, frequencies = kernels.count_terms(*Words.of(["red chair red", "chair red", "", "red"]).terms)
    counts = list(zip(terms.tolist(), frequencies.tolist(), strict=True))
    by_text = [dict(counts[start:stop]) for start, stop in pairwise(offsets.tolist())]
    red, chair = hash_word("red"), hash_word("chair")
    assert by_text[0][red] == 2
    assert by_text[0][chair] == 1
    assert len(by_text[0]) == 4  # two words, "red chair" and "chair red"
    assert by_text[1].keys() < by_text[0].keys()
    assert by_text[2] == {}
    assert by_text[3] == {red: 1}


def test_a_long_text_is_read_up_to_its_bound():
    assert len(words("a " * MAX_CHARACTERS)) == MAX_CHARACTERS // 2


def test_long_words_of_queries_take_no_memory_after_the_query():
    queries = [f"{nth:04}" + "\U00010400" + "a" * 8_000 for nth in range(500)]  # 32 kB in memory for each word
    tracemalloc.start()
    for query in queries:
        Words.of([query, "red chair"])
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1_000_000
    assert Words.of(queries[:1]).hashes.tolist() == [hash_word(words(queries[0])[0])]
