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

import numpy as np
from jaxtyping import Int, UInt8, UInt64

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
# Number of candidates for similar texts, and the share of the search text's trigrams that a similar text must have.
_CANDIDATES, _LEAST_SHARE = 512, 0.4
# The byte between two texts of a block.
_END = b"\n"


def fold(text: str) -> bytes:
    """A text as it is compared: without upper case, with single spaces."""
    folded = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold()
    return " ".join(folded.split()).encode("utf-8", "replace")


class TextSearch:
    """Finds texts by their rows; immutable.

    Args:
        texts: Texts of the rows: any object with a length and items.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._rows = 0
        self._blocks: tuple[_Block, ...] = ()
        self._append(texts)

    def add(self, texts: Sequence[str]) -> TextSearch:
        """Return a search that has these texts, too. Their rows follow the last row of this one."""
        added = copy.copy(self)
        added._append(texts)
        return added

    def _append(self, texts: Sequence[str]) -> None:
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
            yield self._resemble(wanted)

    def _best(self, find: Callable[[_Block], _Found]) -> Int[np.ndarray, " row"]:
        """The rows that all blocks find, the best row first."""
        found = [find(block) for block in self._blocks]
        if not found:
            return np.empty(0, dtype=np.int64)
        rows, ranks, lengths = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows[np.lexsort((rows, lengths, ranks))]

    def _resemble(self, wanted: bytes) -> Int[np.ndarray, " row"]:
        grams, signature = _trigrams(wanted), _signatures(_END + wanted + 2 * _END, np.zeros(1, dtype=np.int64))[0]
        shares: dict[int, tuple[float, int]] = {}
        for row in self._best(lambda block: block.share_bits(signature))[:_CANDIDATES].tolist():
            found = _trigrams(self._text(row))
            share = len(grams & found) / len(grams)
            if share >= _LEAST_SHARE:
                shares[row] = (-share, len(found))
        return np.array(sorted(shares, key=shares.__getitem__), dtype=np.int64)

    def _text(self, row: int) -> bytes:
        block = next(block for block in reversed(self._blocks) if block.first <= row)
        return block.text(row)


# The rows that a block finds, a rank of each (the best rank is 0), and the lengths of their texts.
_Found = tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"], Int[np.ndarray, " row"]]


class _Block:
    """Some texts in a row.

    Args:
        first: Row of the first text.
        texts: The texts, as `fold` gives them.
    """

    def __init__(self, first: int, texts: Sequence[bytes]) -> None:
        self.first = first
        self._utf8 = _END + _END.join(texts) + 2 * _END
        # Text i is between the ends i and i + 1.
        self._ends = np.flatnonzero(np.frombuffer(self._utf8, dtype=np.uint8) == ord(_END))[: len(texts) + 1]
        self._signatures = _signatures(self._utf8, self._ends[:-1])

    def text(self, row: int) -> bytes:
        start, end = self._ends[row - self.first : row - self.first + 2].tolist()
        return self._utf8[start + 1 : end]

    def begin_with(self, wanted: bytes) -> _Found:
        places = self._places(_END + wanted)
        return self._found(places, np.zeros(len(places), dtype=np.int64))

    def contain(self, wanted: bytes) -> _Found:
        """Texts in which a word begins with `wanted` have rank 0, the others rank 1."""
        places = self._places(wanted)
        before = np.frombuffer(self._utf8, dtype=np.uint8)[places - 1]
        return self._found(places, _IN_WORD[before])

    def share_bits(self, signature: UInt64[np.ndarray, " word"]) -> _Found:
        """The texts whose signatures share the most bits with `signature`."""
        used = np.flatnonzero(signature)
        shared = np.bitwise_count(self._signatures[:, used] & signature[used]).sum(axis=1, dtype=np.int64)
        texts = np.flatnonzero(shared >= _LEAST_SHARE * np.bitwise_count(signature).sum())
        if len(texts) > _CANDIDATES:
            texts = texts[np.argpartition(-shared[texts], _CANDIDATES)[:_CANDIDATES]]
        return texts + self.first, -shared[texts], self._lengths(texts)

    def _places(self, wanted: bytes) -> Int[np.ndarray, " place"]:
        places: list[int] = []
        place = self._utf8.find(wanted)
        while place >= 0 and len(places) < _MAX_PLACES:
            places.append(place)
            place = self._utf8.find(wanted, place + 1)
        return np.array(places, dtype=np.int64)

    def _found(self, places: Int[np.ndarray, " place"], ranks: Int[np.ndarray, " place"]) -> _Found:
        texts = np.searchsorted(self._ends, places, side="right") - 1
        return texts + self.first, ranks, self._lengths(texts)

    def _lengths(self, texts: Int[np.ndarray, " text"]) -> Int[np.ndarray, " text"]:
        return self._ends[texts + 1] - self._ends[texts]


def _signatures(utf8: bytes, starts: Int[np.ndarray, " text"]) -> UInt64[np.ndarray, "text word"]:
    """The signatures of the texts that begin after the places `starts`. The last text ends before two ends."""
    byte = _without_ends(utf8).astype(np.uint32)
    first, second, third = (np.uint32(factor) for factor in _FACTORS)
    bit = (byte[:-2] * first + byte[1:-1] * second + byte[2:] * third) >> np.uint32(24)
    word, flag = bit >> np.uint32(6), np.uint64(1) << (bit & np.uint32(63)).astype(np.uint64)
    signatures = np.empty((len(starts), _WORDS), dtype=np.uint64)
    for column in range(_WORDS):
        signatures[:, column] = np.bitwise_or.reduceat(np.where(word == column, flag, np.uint64(0)), starts)
    return signatures


def _without_ends(utf8: bytes) -> UInt8[np.ndarray, " byte"]:
    """The beginning and the end of a text are like those of a word."""
    return np.frombuffer(utf8.replace(_END, b" "), dtype=np.uint8)


def _trigrams(text: bytes) -> set[tuple[int, int, int]]:
    padded = b" " + text + b" "
    return set(zip(padded, padded[1:], padded[2:], strict=False))


# For each byte, 1 if it is a letter or a digit, or part of one, so that no word begins after it.
_IN_WORD = np.array([byte >= 0x80 or chr(byte).isalnum() for byte in range(256)], dtype=np.int64)
