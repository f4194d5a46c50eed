"""A long text gets the ids of its tokenizer, which reads only the beginning of the text."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from recollect.core.predictor import Predictor
from recollect.core.tokenizer import encode_beginnings

LIMIT, LONG = 32, 65_536
WORDS = ["tax", "bread", "court", "galaxies", "Straßenbahn", "überfüllt", "well-known", "1815", "音楽", "éte", "don’t"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


class Counted:
    """A tokenizer that counts the characters that it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.characters, self.truncation = tokenizer, 0, tokenizer.truncation

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def _trained(model: Any, trainer: Any, pre_tokenizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizer
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _tokenizers(predictor: Predictor) -> dict[str, Tokenizer]:
    unigram = {"vocab_size": 60, "special_tokens": SPECIAL, "unk_token": "<unk>", "show_progress": False}
    bytes_ = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": SPECIAL, "vocab_size": 320}
    return {
        "WordPiece": Tokenizer.from_file(str(predictor.bundle.folder / "tokenizer.json")),
        "Unigram": _trained(models.Unigram(), trainers.UnigramTrainer(**unigram), pre_tokenizers.Metaspace()),
        "Unigram over spaces": _trained(
            models.Unigram(), trainers.UnigramTrainer(**unigram), pre_tokenizers.Metaspace(split=False)
        ),
        "BPE": _trained(
            models.BPE(), trainers.BpeTrainer(**bytes_, show_progress=False), pre_tokenizers.ByteLevel()
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["WordPiece", "Unigram", "Unigram over spaces", "BPE"])
def test_long_text_gets_the_ids_of_the_tokenizer_from_its_beginning(predictor: Predictor, kind: str) -> None:
    tokenizer = _tokenizers(predictor)[kind]
    tokenizer.no_padding()
    tokenizer.enable_truncation(LIMIT)
    rng = random.Random(7)
    words = [" ".join(rng.choices(WORDS, k=LONG // 6)) for _ in range(5)]
    unbroken = ["音楽" * LONG, "".join(rng.choices("abcdeé-", k=LONG))]
    odd = ["tax", "x" * LONG, " " * LONG + "tax", "tax" + " " * LONG + "bread", "\u200b" * LONG]
    for texts, is_partly_read in ((words, True), (unbroken, False), (odd, False)):
        counted: Any = Counted(tokenizer)
        found = [(each.ids, bool(each.overflowing)) for each in encode_beginnings(counted, texts)]
        assert found == [(each.ids, bool(each.overflowing)) for each in tokenizer.encode_batch_fast(texts)]
        assert not is_partly_read or counted.characters <= len(texts) * 16 * LIMIT
