"""Texts get the same ids word by word as from the tokenizer."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from recollect.core.encoder import WordPieces, treats_words_alone
from recollect.core.predictor import Predictor

LIMIT = 16
TEXTS = [
    *["", " \t\r\n ", "The Tax on BREAD, 1815.", "well-known e-mail_address@example.org (a+b)*c/d"],
    *["Café naïve-looking Übung", "don’t — “quoted” text", "音楽と music 中文", "a\u00a0b\u3000c\u2003d"],
    *["e\u0301a \u0301 x", "soft\u00adhyphen zero\u200bwidth next\u0085line", "x" * 300, "word " * 100, "é" * 300],
    *["👩‍👩‍👧 ok", "İstanbul ﬁne ß", "\ufeffstart"],
]


@pytest.fixture(scope="module")
def tokenizer(predictor: Predictor) -> Tokenizer:
    content = (predictor.bundle.folder / "tokenizer.json").read_text(encoding="utf-8")
    opened = Tokenizer.from_str(content)
    opened.no_padding()
    opened.enable_truncation(LIMIT)
    return opened


@pytest.fixture
def words(tokenizer: Tokenizer) -> WordPieces:
    assert treats_words_alone(tokenizer)
    return WordPieces(tokenizer, LIMIT)


def expected(tokenizer: Tokenizer, text: str) -> tuple[list[int], bool]:
    encoding = tokenizer.encode(text)
    return encoding.ids, bool(encoding.overflowing)


@pytest.mark.parametrize("text", TEXTS)
def test_text_gets_the_ids_of_the_tokenizer_before_and_after_its_words_are_known(
    words: WordPieces, tokenizer: Tokenizer, text: str
) -> None:
    assert words.encode(text) == expected(tokenizer, text)
    assert words.encode(text) == expected(tokenizer, text)


def test_random_texts_get_the_ids_of_the_tokenizer(words: WordPieces, tokenizer: Tokenizer) -> None:
    characters = [chr(code) for code in range(32, 127)] + [" "] * 30 + list("\t\n\réüñ—’“中文ß\u0301\u200b\u00ad\u00a0")
    rng = random.Random(7)
    for _ in range(2_000):
        text = "".join(rng.choices(characters, k=rng.randrange(60)))
        assert words.encode(text) == expected(tokenizer, text), text


@pytest.mark.parametrize("text", ["a [SEP] b", "[MASK]ed", "a\x00b", "a\x0bb", "a\x1fb", "\x7f"])
def test_special_tokens_and_control_characters_are_left_to_the_tokenizer(words: WordPieces, text: str) -> None:
    assert words.encode(text) is None


def test_other_tokenizers_are_not_split_into_words(tokenizer: Tokenizer) -> None:
    unlike = [Tokenizer.from_str(tokenizer.to_str()) for _ in range(3)]
    unlike[0].pre_tokenizer = pre_tokenizers.Whitespace()
    unlike[1].normalizer = normalizers.Lowercase()
    unlike[2].model = models.BPE()
    assert not any(treats_words_alone(each) for each in unlike)
