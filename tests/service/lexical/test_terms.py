"""Terms of texts in many scripts."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.service.lexical.terms import MAX_CHARACTERS, count_terms, hash_word, query_terms, text_terms, words


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
        ("", []),
    ],
)
def test_words_of_any_script_are_found(text, expected):
    assert words(text) == expected


def test_words_of_a_text_do_not_depend_on_the_script_of_its_other_words():
    text = "Green-TEA_2 b.c\td " + "".join(map(chr, range(128)))
    assert words(f"{text} é") == [*words(text), "é"]


def test_terms_are_words_and_ordered_pairs_of_neighbours():
    place, terms = text_terms(["red chair red", "chair red", "", "red"])
    by_text = [set(terms[place == text].tolist()) for text in range(4)]
    red, chair = hash_word("red"), hash_word("chair")
    assert {red, chair} < by_text[0]
    assert len(by_text[0]) == 4  # two words, "red chair" and "chair red"
    assert by_text[1] < by_text[0]
    assert by_text[2] == set()
    assert by_text[3] == {red}


def test_terms_are_counted_text_by_text():
    rows, terms, counts = count_terms(*text_terms(["b b b", "a"]))
    assert rows.tolist() == [0, 0, 1]
    assert dict(zip(terms.tolist(), counts.tolist(), strict=True))[hash_word("b")] == 3
    assert (np.diff(terms[:2].astype(float)) > 0).all()


@pytest.mark.parametrize("text", ["", "one", "red chair red", "日本語 text"])
def test_terms_of_a_query_are_those_of_a_text(text):
    assert sorted(query_terms(text).tolist()) == sorted(text_terms([text])[1].tolist())


def test_a_long_text_is_read_up_to_its_bound():
    assert len(words("a " * MAX_CHARACTERS)) == MAX_CHARACTERS // 2
