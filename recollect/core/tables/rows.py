"""Rows: the texts of one kind (instances, labels or corrections) in a memory, those of the bundle before live ones.

One thread writes. What a snapshot has read does not change: new rows are appended after its rows in the same buffers,
and an array is copied before its values change. A row that is replaced or removed stays, and a mask says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int8, Shaped

from recollect.core.bundle.strings import StringTable
from recollect.core.kernels import near_codes

# Number of rows of the smallest buffer.
_FIRST_ROWS = 64
_LARGEST_CODE, _LARGEST_QUERY_CODE = 127, 2_047
# Allowance for the rounding of sums.
_ROUNDING = 1e-5


class Column:
    """An array that one thread extends and changes.

    Args:
        first: The first rows; they do not change in this array.
    """

    def __init__(self, first: Shaped[np.ndarray, " row *column"]) -> None:
        self._buffer, self._rows, self._is_shared = first, len(first), True

    def __len__(self) -> int:
        return self._rows

    @property
    def now(self) -> Shaped[np.ndarray, " row *column"]:
        """The rows as they are now, for the thread that writes."""
        return self._buffer[: self._rows]

    def snapshot(self) -> Shaped[np.ndarray, " row *column"]:
        """The rows as they are now; later changes do not change this array."""
        self._is_shared = True
        return self.now

    def change(self) -> Shaped[np.ndarray, " row *column"]:
        """The rows, to change them in place. The first call after `snapshot` copies them."""
        if self._is_shared:
            self._move(len(self._buffer))
        return self.now

    def append(self, row: Shaped[np.ndarray, " *column"] | float) -> None:
        self.extend((row,))

    def extend(self, rows: Shaped[np.ndarray, " added *column"] | Sequence[np.ndarray | float]) -> None:
        """Append rows. A full buffer is replaced by one of twice the size, so this takes constant time on average."""
        end = self._rows + len(rows)
        if end > len(self._buffer):
            self._move(max(_FIRST_ROWS, 2 * end))
        self._buffer[self._rows : end] = rows
        self._rows = end

    def _move(self, rows: int) -> None:
        buffer = np.empty((rows, *self._buffer.shape[1:]), dtype=self._buffer.dtype)
        buffer[: self._rows] = self.now
        self._buffer, self._is_shared = buffer, False


class Codes(NamedTuple):
    """Codes of vectors, with 8 bits for each number. They tell which vectors can be near a query.

    A vector is about its scale times its code. A comparison of codes takes 0.4 of the time of a comparison of vectors.
    It is not exact, but its error has a bound: the distance between a vector and its code, and the distance between the
    query and its code. So no vector that is near enough is missed, and the caller compares those that are found with
    the query.

    Attributes:
        codes: Integers from -127 to 127.
        scales: The scale of each vector.
        errors: The distance between each vector and its code.
    """

    codes: Int8[np.ndarray, "row dim"]
    scales: Float[np.ndarray, " row"]
    errors: Float[np.ndarray, " row"]

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "row dim"]) -> Codes:
        codes, scales, errors = _quantise(vectors, _LARGEST_CODE)
        return cls(codes.astype(np.int8), scales, errors)

    def near(
        self, vector: Float[np.ndarray, " dim"], least: float, removed: Bool[np.ndarray, " row"]
    ) -> Int[np.ndarray, " candidate"]:
        """The present rows of all vectors whose similarity to a vector is at least `least`, and of some others."""
        (code,), (scale,), (error,) = _quantise(vector[None], _LARGEST_QUERY_CODE)
        length, longest = float(np.linalg.norm(vector)), _LARGEST_CODE * len(vector) ** 0.5
        bound = least - _ROUNDING * max(1.0, length)
        return near_codes((*self,), removed, code.astype(np.int16), float(scale), length, float(error) * longest, bound)


def _quantise(
    vectors: Float[np.ndarray, "row dim"], largest: int
) -> tuple[Float[np.ndarray, "row dim"], Float[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Codes from `-largest` to `largest`, scales so that a vector is about the scale times its code, and distances."""
    scales = np.maximum(np.abs(vectors).max(axis=1), np.float32(1e-6)) / np.float32(largest)
    codes = np.rint(vectors / scales[:, None])
    return codes, scales, np.linalg.norm(vectors - codes * scales[:, None], axis=1)


@dataclass(frozen=True, eq=False)
class Strings:
    """The strings of the rows of a bundle, then those of live rows.

    Attributes:
        bundle_strings: The strings of the bundle.
        live: The live strings, and perhaps later ones.
        rows: The row of each number by which the strings are read; None if the number is the row.
    """

    bundle_strings: StringTable | tuple[()]
    live: list[str]
    rows: Int[np.ndarray, " number"] | None = None

    def __getitem__(self, number: int) -> str:
        row = number if self.rows is None else self.rows.item(number)
        bundle = self.bundle_strings
        return bundle[row] if row < len(bundle) else self.live[row - len(bundle)]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one snapshot.

    Attributes:
        uids: Their uids.
        texts: Their texts.
        removed: Whether each row was replaced or removed.
        vectors: The unit vectors of the live rows.
        numbers: The number that each live row has in the memory: an instance, or the position of a label.
        codes: The codes of the vectors.
        string_bytes: Size of the uids and texts of the live rows in memory.
    """

    uids: Strings
    texts: Strings
    removed: Bool[np.ndarray, " row"]
    vectors: Float[np.ndarray, "live dim"]
    numbers: Int[np.ndarray, " live"]
    codes: Codes
    string_bytes: int
    _table: RowTable

    @property
    def live_bytes(self) -> int:
        """Memory of the live rows."""
        return self.string_bytes + sum(each.nbytes for each in (self.vectors, self.numbers, *self.codes))

    @property
    def bundle_rows(self) -> int:
        """Number of rows of the bundle."""
        return len(self.removed) - len(self.vectors)

    @functools.cached_property
    def removed_bundle_rows(self) -> int:
        """Number of rows of the bundle that were replaced or removed."""
        return int(np.count_nonzero(self.removed[: self.bundle_rows]))

    @functools.cached_property
    def present(self) -> int:
        """Number of rows that were neither replaced nor removed."""
        return int(np.count_nonzero(~self.removed))

    def find(self, uid: str) -> int | None:
        """The present row with a uid."""
        return self._table.find(uid, self.removed)

    def find_live(self, uid: str) -> int | None:
        """The present live row with a uid."""
        return self._table.find_live(uid, self.removed)


class RowTable:
    """The rows of one kind, which one thread changes.

    Args:
        dim: Number of dimensions of a vector.
        uids: Uids of the rows of the bundle.
        texts: Their texts.
        find_in_bundle: Finds the row of the bundle with a uid.

    Attributes:
        texts: The texts of all rows.
        numbers: As in `Rows`.
        removed: As in `Rows`.
    """

    def __init__(
        self,
        dim: int,
        uids: StringTable | tuple[()] = (),
        texts: StringTable | tuple[()] = (),
        find_in_bundle: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._uids, self.texts, self._find_in_bundle = Strings(uids, []), Strings(texts, []), find_in_bundle
        self.bundle_rows = len(uids)
        self.removed = Column(np.zeros(self.bundle_rows, dtype=bool))
        self.numbers = Column(np.empty(0, dtype=np.int64))
        self._vectors = Column(np.empty((0, dim), dtype=np.float32))
        self._codes = [Column(each) for each in Codes.of(self._vectors.now)]
        self._string_bytes = 0
        # The last live row of each uid, and the row before each live row with the same uid.
        self._newest: dict[str, int] = {}
        self._before: list[int | None] = []

    def __len__(self) -> int:
        """Number of rows, with those that were replaced or removed."""
        return len(self.removed)

    def add(self, uid: str, text: str, vector: Float[np.ndarray, " dim"], number: int) -> int:
        """Append a row, and return it."""
        row = len(self)
        self._uids.live.append(uid)
        self.texts.live.append(text)
        self._string_bytes += sys.getsizeof(uid) + sys.getsizeof(text)
        self._vectors.append(vector)
        self.numbers.append(number)
        self.removed.append(False)
        self._before.append(self._newest.get(uid))
        self._newest[uid] = row
        return row

    def remove(self, row: int) -> None:
        self.removed.change()[row] = True

    def find(self, uid: str, removed: Bool[np.ndarray, " row"] | None = None) -> int | None:
        """The present row with a uid, now or in the snapshot that has this mask of removed rows."""
        removed = self.removed.now if removed is None else removed
        row = self.find_live(uid, removed)
        if row is None:
            row = self._find_in_bundle(uid)
        return None if row is None or removed[row] else row

    def find_live(self, uid: str, removed: Bool[np.ndarray, " row"]) -> int | None:
        """The present live row with a uid in the snapshot that has this mask of removed rows."""
        row = self._newest.get(uid)
        while row is not None and row >= len(removed):  # a row that the snapshot does not have
            row = self._before[row - self.bundle_rows]
        return None if row is None or removed[row] else row

    def snapshot(self) -> Rows:
        new = self._vectors.now[len(self._codes[0]) :]
        for column, values in zip(self._codes, Codes.of(new), strict=True):
            column.extend(values)
        return Rows(
            uids=self._uids,
            texts=self.texts,
            removed=self.removed.snapshot(),
            vectors=self._vectors.snapshot(),
            numbers=self.numbers.snapshot(),
            codes=Codes(*(each.snapshot() for each in self._codes)),
            string_bytes=self._string_bytes,
            _table=self,
        )
