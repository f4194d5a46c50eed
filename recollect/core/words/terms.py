"""Words: splits texts into words, and hashes the words to even numbers. Pairs of neighbouring words have odd hashes.

A word is a run of letters, digits and combining marks in any script. Scripts without spaces between words (Chinese,
Japanese, Thai, Lao, Khmer, Burmese) give one word for each character; pairs of neighbours then stand for words. Words
are compared without upper and lower case (Unicode's case folding), after NFKC normalisation.

Hashes take 8 bytes for each term of any length, and an array of hashes is searched without reading strings. Among ten
million words, the chance that any two share a hash is 5 in a million.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

# Longest part of a text that is read, in characters: the cost of a query must have a bound.
MAX_CHARACTERS = 20_000

# Letters of scripts without spaces: Thai and Lao, Burmese, Khmer, Japanese and Chinese.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Combining marks inside words, which `\w` does not match: Latin, Cyrillic, Hebrew, Arabic, and the scripts of India.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u0900-\u0963\u0966-\u0d7f"
)
_WORD = re.compile(f"[{_UNSPACED}]|(?:(?![{_UNSPACED}_])[\\w{_MARKS}])+")
# ASCII letters in lower case, digits, and a space for every other ASCII character.
_ASCII = str.maketrans({code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)})

# Number of letters of a stem: the words of a family, such as tax and taxes or Steuer and Steuern, begin alike.
_STEM_LETTERS = 5
# Number of words of queries whose hashes are cached. Most words of a query are frequent words.
_CACHED_WORDS = 1 << 16
# Longest word whose hash is cached, in characters: the size of the caches must have a bound.
_LONGEST_CACHED = 64


def words(text: str) -> list[str]:
    """The words of a text, in order, without upper case."""
    text = text[:MAX_CHARACTERS]
    if text.isascii():  # the same words in a fraction of the time
        return text.translate(_ASCII).split()
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def hash_word(word: str) -> int:
    """The hash of a word, an even number."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()) & ~1


hash_query_word = functools.lru_cache(_CACHED_WORDS)(hash_word)


class Words(NamedTuple):
    """The words of some texts, in order, as hashes: text i has the words `offsets[i]` to `offsets[i + 1]`.

    The stem of a word is its first letters, in every language.
    """

    offsets: Int[np.ndarray, " offset"]
    hashes: UInt64[np.ndarray, " word"]
    stems: UInt64[np.ndarray, " word"]

    @property
    def terms(self) -> tuple[Int[np.ndarray, " offset"], UInt64[np.ndarray, " word"]]:
        """The words without their stems, for `kernels.count_terms`."""
        return self.offsets, self.hashes

    @classmethod
    def of(cls, texts: Iterable[str], cached: Callable[[str], int] = hash_query_word) -> Words:
        """Split texts into words; `cached` is `hash_word` with a cache, which a text with a very long word does
        without.
        """
        hashes: list[int] = []
        stems: list[int] = []
        offsets = [0]
        for text in texts:
            found = words(text)
            hashes += map(cached if max(map(len, found), default=0) <= _LONGEST_CACHED else hash_word, found)
            stems += [cached(word[:_STEM_LETTERS]) for word in found]
            offsets.append(len(hashes))
        return cls(np.array(offsets), np.array(hashes, dtype=np.uint64), np.array(stems, dtype=np.uint64))
