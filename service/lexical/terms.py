"""Terms: the words of a text and its pairs of neighbouring words, as 64-bit hashes. Words are even, pairs are odd.

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

import numpy as np
from jaxtyping import Int, UInt64

from recollect.service import loops

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
_ASCII_WORD = re.compile("[a-z0-9]+")

# Number of words of queries whose hashes are remembered. Most words of a query are frequent words.
_CACHED_WORDS = 1 << 16


def words(text: str) -> list[str]:
    """The words of a text, in order, without upper case."""
    text = text[:MAX_CHARACTERS]
    if text.isascii():  # the same words in a third of the time
        return _ASCII_WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def hash_word(word: str) -> int:
    """The hash of a word, an even number."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()) & ~1


hash_query_word = functools.lru_cache(_CACHED_WORDS)(hash_word)


def count_terms(
    texts: Iterable[str], hash_word: Callable[[str], int] = hash_query_word
) -> tuple[Int[np.ndarray, " offset"], UInt64[np.ndarray, " term"], Int[np.ndarray, " term"]]:
    """Count the terms of some texts.

    Args:
        texts: The texts.
        hash_word: `hash_word`, or a version of it that caches.

    Returns:
        Text i has the terms `offsets[i]` to `offsets[i + 1]`; and how often each of them occurs.
    """
    hashes: list[int] = []
    offsets = [0]
    for text in texts:
        hashes += map(hash_word, words(text))
        offsets.append(len(hashes))
    return loops.count_terms(np.array(offsets), np.array(hashes, dtype=np.uint64))
