"""The contents of a dataset: texts with their uids, label sets, and splits.

The arrays are compact, so that half a million texts take tens of megabytes: strings are Arrow arrays (one buffer of
UTF-8 and one of offsets), and label sets are compressed sparse rows.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int
from scipy import sparse

from recollect.core.bundle.label_fields import to_json
from recollect.core.bundle.values import Matrix
from recollect.core.texts import is_blank

SplitName = Literal["train", "test"]

_CHUNK_STRINGS = 65_536
_NUMBER_BITS = 53  # a float stores so many bits exactly


@dataclass(frozen=True)
class Entries:
    """Texts and their uids, one row for each label of a dataset or for each instance or query of a split.

    Attributes:
        fields: The `LabelFields` of each label as JSON, empty for a label without any; None if no row has any.
    """

    uids: pa.LargeStringArray
    texts: pa.LargeStringArray
    fields: pa.LargeStringArray | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def strings(self) -> Iterator[str]:
        """Yield the texts as Python strings. Only one chunk of them is in memory."""
        for start in range(0, len(self), _CHUNK_STRINGS):
            yield from self.texts[start : start + _CHUNK_STRINGS].to_pylist()

    def without_blank_end(self, rows: int) -> Entries:
        """Leave out the texts after the first `rows` rows if all of these are blank: blank lines ended their file."""
        return self.where(np.arange(len(self)) < rows) if blank_rows(self.texts[rows:]).all() else self

    def where(self, kept: Bool[np.ndarray, " row"]) -> Entries:
        """Copy the rows where `kept` is true."""
        mask = pa.array(kept)
        fields = None if self.fields is None else self.fields.filter(mask)
        return Entries(self.uids.filter(mask), self.texts.filter(mask), fields)


@dataclass(frozen=True, eq=False)
class LabelSets(Matrix):
    """The label positions of each row, sorted and distinct."""

    @classmethod
    def of(cls, relevance: sparse.csr_matrix) -> LabelSets:
        """Make the label sets from the non-zeros of a relevance matrix with the axes (row, label)."""
        return cls(relevance.indptr.astype(np.int64), relevance.indices.astype(np.int32))

    @classmethod
    def of_pairs(cls, pairs: Int[np.ndarray, "pair 2"], rows: int) -> LabelSets:
        """Make the label sets from pairs (row, label), sorted and distinct."""
        return cls(np.searchsorted(pairs[:, 0], np.arange(rows + 1)).astype(np.int64), pairs[:, 1].astype(np.int32))

    def where(self, kept: Bool[np.ndarray, " row"]) -> LabelSets:
        """Copy the label sets, with an empty set for each row where `kept` is false."""
        sizes = np.diff(self.indptr)
        indptr = np.concatenate([[0], np.cumsum(sizes * kept)])
        return LabelSets(indptr, self.indices[np.repeat(kept, sizes)])

    def to_csr(self, labels: int) -> sparse.csr_matrix:
        """Make the relevance matrix Y of zeros and ones, with the axes (row, label)."""
        ones = np.ones(len(self.indices), dtype=np.float32)
        return sparse.csr_matrix((ones, self.indices, self.indptr), shape=(len(self), labels))

    def union(self, other: LabelSets, labels: int) -> LabelSets:
        """Join the label sets of each row."""
        return LabelSets.of(self.to_csr(labels) + other.to_csr(labels))

    def pairs(self) -> Int[np.ndarray, "pair 2"]:
        """The pairs (row, label), sorted."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        return np.stack([rows, self.indices.astype(np.int64)], axis=1)

    def codes(self, labels: int) -> Int[np.ndarray, " pair"]:
        """The pairs as numbers row * labels + label, sorted if the label sets are."""
        row, label = self.pairs().T
        return np.asarray(row * labels + label)


def no_pairs() -> Int[np.ndarray, "0 2"]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Split:
    """Texts with their label sets.

    Attributes:
        filtered_pairs: Pairs (row, label), sorted and distinct: the label is removed from the predictions for the row.
    """

    entries: Entries
    labels: LabelSets
    filtered_pairs: Int[np.ndarray, "pair 2"] = field(default_factory=no_pairs)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def filtered(self) -> LabelSets:
        """The labels that are removed from the predictions for each row."""
        return LabelSets.of_pairs(self.filtered_pairs, len(self))

    def head(self, rows: int) -> Split:
        """The first `rows` rows."""
        rows = min(rows, len(self))
        indptr = self.labels.indptr[: rows + 1]
        return Split(
            entries=Entries(self.entries.uids[:rows], self.entries.texts[:rows]),
            labels=LabelSets(indptr, self.labels.indices[: indptr[-1]]),
            filtered_pairs=self.filtered_pairs[self.filtered_pairs[:, 0] < rows],
        )

    def where(self, rows: Bool[np.ndarray, " row"], labels: Bool[np.ndarray, " label"]) -> Split:
        """Copy the split with some rows and some labels. The rows and labels are numbered again, in the same order."""
        new_row, new_label = np.cumsum(rows) - 1, np.cumsum(labels) - 1

        def renumber(pairs: Int[np.ndarray, "pair 2"]) -> Int[np.ndarray, "kept 2"]:
            row, label = pairs[rows[pairs[:, 0]] & labels[pairs[:, 1]]].T
            return np.stack([new_row[row], new_label[label]], axis=1)

        return Split(
            self.entries.where(rows),
            LabelSets.of_pairs(renumber(self.labels.pairs()), int(rows.sum())),
            renumber(self.filtered_pairs),
        )


class SplitBuilder:
    """Builds the texts and label sets of a split row by row."""

    def __init__(self) -> None:
        self._uids, self._texts = StringColumn(), StringColumn()
        self._indptr, self._indices = array.array("q", [0]), array.array("i")
        self._filtered: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def append(self, uid: str, text: str, labels: Sequence[int], filtered: Sequence[int] = ()) -> None:
        self._filtered += [(len(self), label) for label in sorted(set(filtered))]
        self._uids.append(uid)
        self._texts.append(text)
        self._indices.extend(sorted(set(labels)))
        self._indptr.append(len(self._indices))

    def build(self) -> Split:
        entries = Entries(self._uids.build(), self._texts.build())
        indptr = np.frombuffer(self._indptr, dtype=np.int64)
        indices = np.frombuffer(self._indices, dtype=np.int32) if self._indices else np.empty(0, np.int32)
        return Split(entries, LabelSets(indptr, indices), np.array(self._filtered, dtype=np.int64).reshape(-1, 2))


class StringColumn:
    """Builds an Arrow string array and holds at most one chunk of it as Python strings."""

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._chunks: list[pa.LargeStringArray] = []

    def append(self, string: str) -> None:
        self._pending.append(string)
        if len(self._pending) >= _CHUNK_STRINGS:
            self._flush()

    def build(self) -> pa.LargeStringArray:
        self._flush()
        return pa.concat_arrays(self._chunks)

    def _flush(self) -> None:
        self._chunks.append(pa.array(self._pending, type=pa.large_string()))
        self._pending = []


class LabelColumns:
    """Builds the entries of labels with their fields."""

    def __init__(self) -> None:
        self._uids, self._texts, self._fields, self._has_fields = StringColumn(), StringColumn(), StringColumn(), False

    def append(self, uid: str, text: str, fields: Mapping[str, Any]) -> None:
        """Append a label with its fields, as `checked_fields` returns them."""
        self._uids.append(uid)
        self._texts.append(text)
        self._fields.append(to_json(fields))
        self._has_fields |= bool(fields)

    def build(self) -> Entries:
        fields = self._fields.build()
        return Entries(self._uids.build(), self._texts.build(), fields if self._has_fields else None)


def blank_rows(texts: pa.LargeStringArray) -> Bool[np.ndarray, " row"]:
    """Mark the texts without a visible character."""
    marked = np.zeros(len(texts), dtype=bool)
    unclear = np.flatnonzero(~pc.match_substring_regex(texts, "[0-9A-Za-z]").to_numpy(zero_copy_only=False))
    marked[unclear] = [is_blank(texts[row].as_py()) for row in unclear.tolist()]
    return marked


def numbered(texts: Iterable[str]) -> Entries:
    """Make entries whose uids are the row numbers, from 0."""
    column = StringColumn()
    for text in texts:
        column.append(text)
    strings = column.build()
    return Entries(row_numbers(len(strings)), strings)


def row_numbers(rows: int) -> pa.LargeStringArray:
    """The uids of rows that have no uids: their numbers, from 0."""
    return pc.cast(pa.array(np.arange(rows)), pa.large_string())


def text_numbers(texts: Iterable[str], count: int, salt: str) -> Float[np.ndarray, " text"]:
    """A number from 0 to 1 for each of `count` texts, which depends only on its words and the salt.

    Case and white space do not count, because few encoders and word indexes see them.

    Raises:
        ValueError: If there are fewer texts.
    """

    def number(text: str) -> int:
        words = f"{salt}\n{' '.join(text.casefold().split())}"
        digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - _NUMBER_BITS)

    numbers: Float[np.ndarray, " text"] = np.fromiter(map(number, texts), dtype=np.int64, count=count) / 2**_NUMBER_BITS
    return numbers


def fingerprint(labels: Entries, split: Split) -> str:
    """SHA-256 over every uid, text, label set and filtered pair, and the fields of labels.

    Equal rows in equal order give equal fingerprints.
    """
    digest = hashlib.sha256()
    fields = [] if labels.fields is None else [labels.fields]
    for strings in (labels.uids, labels.texts, split.entries.uids, split.entries.texts, *fields):
        digest.update(len(strings).to_bytes(8, "little"))
        for buffer in pa.concat_arrays([strings]).buffers()[1:]:
            digest.update(buffer)
    digest.update(split.labels.indptr.tobytes())
    digest.update(split.labels.indices.tobytes())
    digest.update(split.filtered_pairs.astype(np.int64).tobytes())
    return digest.hexdigest()
