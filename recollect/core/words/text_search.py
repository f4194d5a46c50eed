"""A text search: finds the short texts that begin with, contain or resemble the first words that a person types.

Texts are compared without upper and lower case (Unicode's case folding, after NFKC normalisation). A text resembles
another one if it has many of its trigrams (runs of three bytes), so a text is found despite a wrong letter or another
order of the words. A scan of the signatures of all texts finds candidates: a signature has one bit for each of 256
hashes of trigrams. The trigrams of the candidates then decide.

A search of a million texts takes tens of milliseconds. It reads them in blocks, so that no step holds Python's lock for
longer than a few milliseconds.
"""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Int, UInt64

# The rest of a longer text is not searched, in characters.
MAX_CHARACTERS = 200
# Number of texts in a block.
_BLOCK_ROWS = 1 << 16
# Number of places where one block may contain a search text. The others, of a search text with very few characters, are
# not read.
_MAX_PLACES = 2_000
# Number of 64-bit words of a signature, and the factors of the hash of a trigram.
_WORDS = 4
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
# Number of candidates for similar texts in a block, and their least share of the search text's trigrams.
_CANDIDATES, _LEAST_SHARE = 256, 0.4
# The byte between two texts of a block.
_END = b"\n"


def fold(text: str) -> bytes:
    """A text as it is compared: without upper case, with single spaces."""
    folded = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold()
    return " ".join(folded.split()).encode("utf-8", "replace")


class Texts(Protocol):
    """The texts of rows: a list, or a table of a bundle."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> str: ...


class TextSearch:
    """Finds texts by their rows; immutable."""

    def __init__(self, texts: Texts) -> None:
        self._rows = 0
        self._blocks: tuple[_Block, ...] = ()
        self._append(texts)

    def add(self, texts: Texts) -> TextSearch:
        """Return a search that has these texts, too. Their rows follow the last row of this one."""
        added = copy.copy(self)
        added._append(texts)
        return added

    def _append(self, texts: Texts) -> None:
        for start in range(0, len(texts), _BLOCK_ROWS):
            rows = range(start, min(start + _BLOCK_ROWS, len(texts)))
            self._blocks += (_Block(self._rows + start, [fold(texts[row]) for row in rows]),)
        self._rows += len(texts)

    def search(self, text: str) -> Iterator[Int[np.ndarray, " row"]]:
        """Yield rows in three groups, and compute each group only when it is needed.

        The groups are the texts that begin with `text`, the texts that contain it, and the texts that resemble it. A
        text can be in several groups. In each group, the best text comes first; of equally good ones, the shortest.
        """
        wanted = fold(text)
        if wanted:
            yield self._best(lambda block: block.begin_with(wanted))
            yield self._best(lambda block: block.contain(wanted))
            trigrams, signature = _trigrams(wanted), _signatures(_END + wanted + 2 * _END, np.zeros(1, dtype=np.int64))
            yield self._best(lambda block: block.resemble(trigrams, signature))

    def _best(self, find: Callable[[_Block], _Found]) -> Int[np.ndarray, " row"]:
        """The rows that all blocks find, the best row first."""
        found = [find(block) for block in self._blocks]
        if not found:
            return np.empty(0, dtype=np.int64)
        rows, ranks, lengths = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows[np.lexsort((rows, lengths, ranks))]


# The rows that a block finds, a rank of each (the best rank is 0), and the lengths of their texts.
_Found = tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"], Int[np.ndarray, " row"]]


class _Block:
    """Some texts in a row, as `fold` gives them; `first` is the row of the first one."""

    def __init__(self, first: int, texts: Sequence[bytes]) -> None:
        self.first = first
        self._utf8 = _END + _END.join(texts) + 2 * _END
        self._byte = np.frombuffer(self._utf8, dtype=np.uint8)
        # Text i is between the ends i and i + 1.
        self._ends = np.flatnonzero(self._byte == ord(_END))[: len(texts) + 1]
        self._signatures = _signatures(self._utf8, self._ends[:-1])

    def begin_with(self, wanted: bytes) -> _Found:
        texts = np.arange(len(self._ends) - 1)
        for place, byte in enumerate(wanted, start=1):  # a text that is too short has another byte, its end
            texts = texts[self._byte[self._ends[texts] + place] == byte]
        return self._found(texts, np.zeros(len(texts), dtype=np.int64))

    def contain(self, wanted: bytes) -> _Found:
        """Texts in which a word begins with `wanted` have rank 0, the others rank 1."""
        places = self._places(wanted)
        texts = np.searchsorted(self._ends, places, side="right") - 1
        first = np.flatnonzero(np.diff(texts, prepend=-1))  # a text can contain it several times
        return self._found(texts[first], np.minimum.reduceat(_IN_WORD[self._byte[places - 1]], first))

    def resemble(self, trigrams: set[bytes], signature: UInt64[np.ndarray, "word 1"]) -> _Found:
        """Texts with a high Dice coefficient have a low rank: twice the shared trigrams over those of both texts."""
        shared = np.zeros(len(self._ends) - 1, dtype=np.uint16)
        for word, wanted in zip(self._signatures, signature, strict=True):
            if wanted.any():
                shared += np.bitwise_count(word & wanted)
        texts = np.flatnonzero(shared >= _LEAST_SHARE * np.bitwise_count(signature).sum())
        if len(texts) > _CANDIDATES:
            texts = texts[np.argpartition(shared[texts], -_CANDIDATES)[-_CANDIDATES:]]
        starts, ends = self._ends[texts].tolist(), self._ends[texts + 1].tolist()
        spaced = (b" " + self._utf8[start + 1 : end] + b" " for start, end in zip(starts, ends, strict=True))
        counts = np.array([sum(map(text.__contains__, trigrams)) for text in spaced], dtype=np.int64)
        similar = counts >= _LEAST_SHARE * len(trigrams)
        texts, counts = texts[similar], counts[similar]
        lengths = self._ends[texts + 1] - self._ends[texts]  # about the numbers of trigrams
        return self._found(texts, -2_000 * counts // (len(trigrams) + lengths))

    def _places(self, wanted: bytes) -> Int[np.ndarray, " place"]:
        places: list[int] = []
        place = self._utf8.find(wanted)
        while place >= 0 and len(places) < _MAX_PLACES:
            places.append(place)
            place = self._utf8.find(wanted, place + 1)
        return np.array(places, dtype=np.int64)

    def _found(self, texts: Int[np.ndarray, " text"], ranks: Int[np.ndarray, " text"]) -> _Found:
        return texts + self.first, ranks, self._ends[texts + 1] - self._ends[texts]


def _signatures(utf8: bytes, starts: Int[np.ndarray, " text"]) -> UInt64[np.ndarray, "word text"]:
    """The signatures of the texts that begin after the places `starts`. Two ends follow the last text."""
    # The end of a text is like the end of a word.
    byte = np.frombuffer(utf8.replace(_END, b" "), dtype=np.uint8).astype(np.uint32)
    first, second, third = (np.uint32(factor) for factor in _FACTORS)
    bit = (byte[:-2] * first + byte[1:-1] * second + byte[2:] * third) >> np.uint32(24)
    word, flag = bit >> np.uint32(6), np.uint64(1) << (bit & np.uint32(63)).astype(np.uint64)
    flag[np.append(starts[1:], len(flag)) - 1] = 0  # these trigrams reach into the next text
    masks = (np.where(word == row, flag, np.uint64(0)) for row in range(_WORDS))
    return np.stack([np.bitwise_or.reduceat(mask, starts) for mask in masks])


def _trigrams(text: bytes) -> set[bytes]:
    spaced = b" " + text + b" "
    return {spaced[place : place + 3] for place in range(len(spaced) - 2)}


# For each byte, 1 if it is a letter or a digit, or part of one, so that no word begins after it.
_IN_WORD = np.array([byte >= 0x80 or chr(byte).isalnum() for byte in range(256)], dtype=np.int64)
