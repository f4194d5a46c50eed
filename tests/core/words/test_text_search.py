"""The search of short texts, which a person types."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.core.words.text_search import TextSearch

TEXTS = [
    *["Garden chair", "Chair", "Armchair", "Folding hammock", "Chairlift", "Ääniäiset", "音楽", "", "Chair\nwith legs"],
]


def found(search: TextSearch, text: str) -> list[list[int]]:
    return [rows.tolist() for rows in search.search(text)]


def test_groups_are_beginnings_then_other_places_and_shorter_texts_come_first() -> None:
    begin, contain, _ = found(TextSearch(TEXTS), "CHAIR")
    assert begin == [1, 4, 8]
    assert contain == [1, 4, 0, 8, 2]  # `Armchair` is last: no word begins with the search text


@pytest.mark.parametrize(
    ("typo", "row"),
    [("hamock", 3), ("hammock folding", 3), ("foldign hammock", 3), ("garden chiar", 0), ("äaniäiset", 5)],
)
def test_text_is_found_despite_a_wrong_letter_and_in_another_order_of_the_words(typo: str, row: int) -> None:
    begin, contain, similar = found(TextSearch(TEXTS), typo)
    assert begin == contain == []
    assert similar[0] == row


@pytest.mark.parametrize(("text", "row"), [("ÄÄNI", 5), ("音", 6), ("ｃｈａｉｒ ｗｉｔｈ", 8), ("chair  with", 8)])
def test_scripts_case_and_spaces_do_not_matter(text: str, row: int) -> None:
    assert row in found(TextSearch(TEXTS), text)[0]


def test_unlike_text_is_not_found() -> None:
    assert found(TextSearch(TEXTS), "zzz") == [[], [], []]
    assert found(TextSearch(TEXTS), "  ") == []
    assert found(TextSearch([]), "chair") == [[], [], []]


def test_group_equals_a_comparison_with_each_text() -> None:
    random = np.random.default_rng(5)
    texts = ["".join(random.choice(list("abc d"), size=random.integers(1, 9))) for _ in range(500)]
    folded = [" ".join(text.split()) for text in texts]
    search = TextSearch(texts)
    for wanted in ("a", "ab", "c d", "abca"):
        begin, contain, _ = found(search, wanted)
        assert sorted(begin) == [row for row, text in enumerate(folded) if text.startswith(wanted)]
        assert sorted(contain) == [row for row, text in enumerate(folded) if wanted in text]
        assert [len(folded[row]) for row in begin] == sorted(len(folded[row]) for row in begin)
