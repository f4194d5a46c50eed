"""Tokenises texts word by word, with a table of known words.

A BERT tokenizer splits a text at spaces and punctuation, and then splits each word into pieces, without regard to the
other words. So the pieces of a word can be kept. This gives the same ids as the tokenizer in about a tenth of its time.
A long text costs only as much as its beginning, because tokenising stops at the encoder's limit.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

# The words of a text: a part between spaces with characters beyond ASCII; ASCII letters and digits together; each
# other printable ASCII character alone.
_WORDS = re.compile(r"[!-~]*+[^\x00-\x7f][^ \t\n\r]*|[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
# The normalizer removes these characters, and so joins their neighbours.
_REMOVED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Maximum number of known words, and maximum length of a known word.
_MOST_WORDS, _LONGEST_WORD = 65_536, 64


class WordPieces:
    """Tokenises texts as a tokenizer that treats each word alone; thread-safe.

    Args:
        tokenizer: A tokenizer for which `treats_words_alone` is true. It is used for unknown words.
        max_length: Number of tokens after which texts are truncated.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        encoding = tokenizer.encode("a")
        first = encoding.special_tokens_mask.index(0)
        self._before, self._after = encoding.ids[:first], encoding.ids[first + 1 :]
        self._room = max_length - len(self._after)
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> tuple[list[int], bool] | None:
        """The ids of a text, and whether it was truncated. None if only the tokenizer can tokenise the text."""
        if _REMOVED.search(text) or any(content in text for content in self._added):
            return None
        ids, room, known = self._before.copy(), self._room, self._known
        for match in _WORDS.finditer(text):
            word = match[0]
            pieces = known.get(word)
            ids += self._split(word) if pieces is None else pieces
            if len(ids) > room:
                return ids[:room] + self._after, True
        return ids + self._after, False

    def _split(self, word: str) -> list[int]:
        pieces: list[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        if len(word) <= _LONGEST_WORD:
            if len(self._known) >= _MOST_WORDS:
                self._known.clear()
            self._known[word] = pieces
        return pieces


def treats_words_alone(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has the components of a BERT tokenizer, so that a word's ids depend on this word only."""
    normalizer, added = tokenizer.normalizer, tokenizer.get_added_tokens_decoder().values()
    return (
        isinstance(tokenizer.model, WordPiece)
        and isinstance(normalizer, BertNormalizer)
        and normalizer.clean_text
        and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
        and not any(token.normalized for token in added)
        and tokenizer.encode("a").special_tokens_mask.count(0) == 1
    )
