"""The dataset contract: texts, the labels each one has, and the label texts, held compactly.

Strings live in Arrow arrays (one buffer of UTF-8 and one of offsets), label sets in compressed sparse rows:
half a million texts cost tens of megabytes, not a gigabyte of Python objects. `trainer.formats` reads them.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int
from scipy import sparse

from trainer.errors import DatasetError

SplitName = Literal["train", "test"]

_CHUNK_STRINGS = 65_536


@dataclass(frozen=True)
class Entries:
    """Texts and the uids they are known by, row by row; the labels of a dataset are one."""

    uids: pa.LargeStringArray
    texts: pa.LargeStringArray

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class LabelSets:
    """The label positions of each row: row i has `indices[indptr[i] : indptr[i + 1]]`, sorted, each once."""

    indptr: Int[np.ndarray, " pointer"]
    indices: Int[np.ndarray, " pair"]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def of(cls, relevance: sparse.csr_matrix) -> LabelSets:
        """The non-zeros of a relevance matrix."""
        return cls(relevance.indptr.astype(np.int64), relevance.indices.astype(np.int32))

    def where(self, kept: Bool[np.ndarray, " row"]) -> LabelSets:
        """The sets of the rows that are kept; the others are empty."""
        sizes = np.diff(self.indptr)
        indptr = np.concatenate([[0], np.cumsum(sizes * kept)])
        return LabelSets(indptr, self.indices[np.repeat(kept, sizes)])

    def to_csr(self, labels: int) -> sparse.csr_matrix:
        """The relevance matrix Y, "row label", with ones."""
        ones = np.ones(len(self.indices), dtype=np.float32)
        return sparse.csr_matrix((ones, self.indices, self.indptr), shape=(len(self), labels))


@dataclass(frozen=True)
class Split:
    """Texts with their label sets, and the (row, label) pairs that no prediction may hold."""

    entries: Entries
    labels: LabelSets
    filtered_pairs: Int[np.ndarray, "pair 2"]

    def __len__(self) -> int:
        return len(self.entries)

    def head(self, rows: int) -> Split:
        """The first `rows` rows."""
        rows = min(rows, len(self))
        indptr = self.labels.indptr[: rows + 1]
        return Split(
            entries=Entries(self.entries.uids[:rows], self.entries.texts[:rows]),
            labels=LabelSets(indptr, self.labels.indices[: indptr[-1]]),
            filtered_pairs=self.filtered_pairs[self.filtered_pairs[:, 0] < rows],
        )


class StringColumn:
    """Grows an Arrow string array without ever holding more than one chunk of Python strings."""

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._chunks: list[pa.LargeStringArray] = []

    def append(self, string: str) -> None:
        self._pending.append(string)
        if len(self._pending) >= _CHUNK_STRINGS:
            self._flush()

    def _flush(self) -> None:
        self._chunks.append(pa.array(self._pending, type=pa.large_string()))
        self._pending = []

    def build(self) -> pa.LargeStringArray:
        self._flush()
        return pa.concat_arrays(self._chunks)


class SplitBuilder:
    """Collects a split row by row."""

    def __init__(self) -> None:
        self._uids, self._texts = StringColumn(), StringColumn()
        self._indptr, self._indices = array.array("q", [0]), array.array("i")

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def append(self, uid: str, text: str, labels: Sequence[int]) -> None:
        self._uids.append(uid)
        self._texts.append(text)
        self._indices.extend(sorted(set(labels)))
        self._indptr.append(len(self._indices))

    def build(self) -> tuple[Entries, LabelSets]:
        entries = Entries(self._uids.build(), self._texts.build())
        indptr = np.frombuffer(self._indptr, dtype=np.int64)
        indices = np.frombuffer(self._indices, dtype=np.int32) if self._indices else np.empty(0, np.int32)
        return entries, LabelSets(indptr, indices)


def check_unique(uids: pa.LargeStringArray, where: Path) -> None:
    """Refuse a uid that occurs twice.

    Raises:
        DatasetError: Naming the uid and its first two rows.
    """
    if pc.count_distinct(uids).as_py() == len(uids):
        return
    codes = uids.dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    repeats = order[1:][codes[order[1:]] == codes[order[:-1]]]
    second = int(repeats.min())
    first = int(np.flatnonzero(codes == codes[second])[0])
    raise DatasetError(
        f"{where}: uid {uids[second].as_py()!r} occurs twice, in rows {first + 1} and {second + 1}; "
        "expected each uid once: remove one row or rename it"
    )


def text_problem(text: object) -> str | None:
    """What keeps `text` from being a text of a dataset, if anything."""
    if not isinstance(text, str):
        return f"expected a string, found {type(text).__name__}"
    if not text or text.isspace():
        return "the text is empty; give it words or remove the row"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the text holds half of a surrogate pair, which is no character; mend or remove it"
    return None


def fingerprint(labels: Entries, split: Split) -> str:
    """SHA-256 over every text, uid and label set: equal only for equal content in equal order."""
    digest = hashlib.sha256()
    for strings in (labels.uids, labels.texts, split.entries.uids, split.entries.texts):
        digest.update(len(strings).to_bytes(8, "little"))
        for buffer in pa.concat_arrays([strings]).buffers()[1:]:
            digest.update(buffer)
    digest.update(split.labels.indptr.tobytes())
    digest.update(split.labels.indices.tobytes())
    return digest.hexdigest()
