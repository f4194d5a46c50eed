"""The uids of a bundle's instances: finds an instance by its uid.

A bundle has no such index, because answers do not need it. It is built at the first change of a memory. It takes 12
bytes for each instance.
"""

from __future__ import annotations

import secrets

import numpy as np
from jaxtyping import Int, UInt8, UInt64

from recollect.service.bundle.strings import StringTable

# Number of uids whose hashes are computed together; this limits the memory.
_BLOCK_ROWS = 1 << 16


class UidIndex:
    """Finds the row of a uid in a table.

    The hash of a uid is the sum of its bytes, each multiplied by a random number of its place. Uids with equal hashes
    are compared with each other, so that a row is always the right one.
    """

    def __init__(self, uids: StringTable) -> None:
        self._uids = uids
        offsets = uids.offsets
        longest, random = int(np.diff(offsets).max(initial=0)), np.random.default_rng(secrets.randbits(64))
        self._factors: UInt64[np.ndarray, " place"] = random.integers(1 << 64, size=longest, dtype=np.uint64)
        hashes = np.empty(len(uids), dtype=np.uint64)
        for start in range(0, len(uids), _BLOCK_ROWS):
            block = offsets[start : start + _BLOCK_ROWS + 1]
            hashes[start : start + len(block) - 1] = self._hash(uids.utf8[block[0] : block[-1]], block - block[0])
        order = np.argsort(hashes, kind="stable")
        self._rows: Int[np.ndarray, " uid"] = order.astype(np.int32)
        self._hashes: UInt64[np.ndarray, " uid"] = hashes[order]

    def find(self, uid: str) -> int | None:
        """The row of a uid: the first one if there are several, None if there is none."""
        raw = uid.encode("utf-8", "surrogatepass")
        if len(raw) > len(self._factors):
            return None
        (key,) = self._hash(np.frombuffer(raw, dtype=np.uint8), np.array([0, len(raw)]))
        place = int(np.searchsorted(self._hashes, key))
        while place < len(self._hashes) and self._hashes[place] == key:
            if self._uids.raw(row := int(self._rows[place])) == raw:
                return row
            place += 1
        return None

    def _hash(
        self, utf8: UInt8[np.ndarray, " byte"], offsets: Int[np.ndarray, " offset"]
    ) -> UInt64[np.ndarray, " uid"]:
        lengths = np.diff(offsets)
        place = np.arange(len(utf8)) - np.repeat(offsets[:-1], lengths)
        # A byte counts one more, so that a byte 0 at the end of a uid changes the hash.
        sums = np.concatenate([[np.uint64(0)], np.cumsum((utf8.astype(np.uint64) + 1) * self._factors[place])])
        hashes: np.ndarray = sums[offsets[1:]] - sums[offsets[:-1]]
        return hashes
