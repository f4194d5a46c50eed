"""Postings: for each term, the rows of the texts that contain it, and the weight of the term in each of these texts.

A word of a text weighs 1 + ln frequency, and a pair of words a quarter of that; the weights of a text are scaled to
length 1. They depend on this text alone. So a text that is added later gets the same weights as in a new index of all
texts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float16, Int, UInt16, UInt64

from recollect.core import kernels
from recollect.core.bundle.arrays import map_array
from recollect.core.bundle.files import posting_files
from recollect.core.errors import BundleError
from recollect.core.system.files import save_array
from recollect.core.words.terms import Words, hash_word

# Number of texts whose terms are counted together.
_BLOCK_TEXTS = 8_192
# Number of words whose hashes the builder remembers.
_CACHED_WORDS = 1 << 20
# The largest weight, 1, as the bits of a float16. Greater bit patterns are greater, negative or not numbers.
_ONE = np.float16(1).view(np.uint16)


@dataclass(frozen=True, eq=False)
class Postings:
    """Term `terms[t]` occurs in `rows[offsets[t] : offsets[t + 1]]`, in ascending order, with these `weights`.

    Part i has the terms `terms[parts[i] : parts[i + 1]]`, in ascending order. A term can be in several parts.
    """

    terms: UInt64[np.ndarray, " term"]
    offsets: Int[np.ndarray, " offset"]
    rows: Int[np.ndarray, " posting"]
    weights: Float16[np.ndarray, " posting"]
    parts: Int[np.ndarray, " part_offset"]

    @property
    def size_bytes(self) -> int:
        return sum(each.nbytes for each in (self.terms, self.offsets, self.rows, self.weights))

    @classmethod
    def of(
        cls,
        terms: UInt64[np.ndarray, " term"],
        offsets: Int[np.ndarray, " offset"],
        rows: Int[np.ndarray, " posting"],
        weights: Float16[np.ndarray, " posting"],
    ) -> Postings:
        """Postings with one part."""
        return cls(terms, offsets, rows, weights, np.array([0, len(terms)]))

    @classmethod
    def stack(cls, parts: Sequence[Postings]) -> Postings:
        """The parts in one object; they are copied."""
        shifts = np.cumsum([0, *(len(part.rows) for part in parts)])
        starts = [part.offsets[:-1] + shift for part, shift in zip(parts, shifts.tolist(), strict=False)]
        return cls(
            terms=np.concatenate([np.empty(0, np.uint64), *(part.terms for part in parts)]),
            offsets=np.concatenate([*starts, shifts[-1:]]),
            rows=np.concatenate([np.empty(0, np.int32), *(part.rows for part in parts)]),
            weights=np.concatenate([np.empty(0, np.float16), *(part.weights for part in parts)]),
            parts=np.cumsum([0, *(len(part.terms) for part in parts)]),
        )

    def find(
        self, terms: UInt64[np.ndarray, " query_term"]
    ) -> tuple[Int[np.ndarray, "part query_term 2"], Int[np.ndarray, " query_term"]]:
        """The first posting of each term in each part and the one after its last one; and their number."""
        return kernels.find_postings(terms, self.terms, self.offsets, self.parts)

    @functools.cached_property
    def arrays(self) -> tuple[Int[np.ndarray, " posting"], UInt16[np.ndarray, " posting"]]:
        """The rows, and the bits of the weights, for `recollect/core/kernels.py`."""
        return self.rows, self.weights.view(np.uint16)


def invert(texts: Iterable[str], first_row: int = 0) -> Postings:
    """Build the postings of texts, whose rows are numbered from `first_row`. The texts can be a stream."""
    texts, cached = iter(texts), functools.lru_cache(_CACHED_WORDS)(hash_word)
    blocks = []
    while block := list(islice(texts, _BLOCK_TEXTS)):
        offsets, term, frequency = kernels.count_terms(*Words.of(block, cached).terms)
        row = np.repeat(np.arange(len(block), dtype=np.int32), np.diff(offsets))
        blocks.append((row + np.int32(first_row), term, _weights(row, term, frequency, len(block))))
        first_row += len(block)
    if not blocks:
        blocks.append((np.empty(0, np.int32), np.empty(0, np.uint64), np.empty(0, np.float16)))
    return _sort_by_term(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


def join(first: Postings, second: Postings) -> Postings:
    """The postings of the texts of both; the rows of `second` must follow those of `first`."""
    terms = (np.repeat(each.terms, np.diff(each.offsets)) for each in (first, second))
    return _sort_by_term(
        np.concatenate([first.rows, second.rows]),
        np.concatenate(list(terms)),
        np.concatenate([first.weights, second.weights]),
    )


def write_postings(folder: Path, name: str, postings: Postings) -> None:
    arrays = (postings.terms, postings.offsets, postings.rows, postings.weights)
    for file, content in zip(posting_files(name), arrays, strict=True):
        save_array(folder / file, content)


def map_terms(path: Path) -> UInt64[np.ndarray, " term"]:
    """Map the hashes of all terms, which must increase."""
    terms = map_array(path, "uint64")
    wrong = terms[1:] <= terms[:-1]
    if wrong.any():
        row = int(wrong.argmax()) + 1
        raise BundleError(
            f"{path}: row {row}: expected a greater hash than {terms[row - 1]}, the one before, found {terms[row]}; "
            "build the bundle again"
        )
    return terms


def map_weights(path: Path) -> Float16[np.ndarray, " posting"]:
    """Map the weights of all postings, which must be in [0, 1]."""
    weights = map_array(path, "float16")
    bits = weights.view(np.uint16)
    if bits.max(initial=0) > _ONE:
        row = int(bits.argmax())
        raise BundleError(
            f"{path}: row {row}: expected a weight from 0 to 1, found {weights[row]}; build the bundle again"
        )
    return weights


def _weights(
    row: Int[np.ndarray, " posting"],
    term: UInt64[np.ndarray, " posting"],
    frequency: Int[np.ndarray, " posting"],
    texts: int,
) -> Float16[np.ndarray, " posting"]:
    weights = (1 + np.log(frequency)) * np.where(term & np.uint64(1), kernels.PAIR_WEIGHT, 1)
    lengths: Float[np.ndarray, " text"] = np.sqrt(np.bincount(row, weights=weights**2, minlength=texts))
    scaled: np.ndarray = (weights / lengths[row]).astype(np.float16)
    return scaled


def _sort_by_term(row: np.ndarray, term: np.ndarray, weight: np.ndarray) -> Postings:
    order = np.argsort(term, kind="stable")  # rows stay in ascending order
    term = term[order]
    starts = np.flatnonzero(np.concatenate([[True], term[1:] != term[:-1]])) if len(term) else np.empty(0, np.int64)
    return Postings.of(term[starts], np.append(starts, len(term)), row[order], weight[order])
