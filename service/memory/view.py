"""A view: the memory of a version after some entries of its log. A view never changes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, UInt8, UInt64

from recollect.service.bundle.strings import StringTable
from recollect.service.lexical.index import LexicalIndex
from recollect.service.memory.corrections import Corrections
from recollect.service.memory.layers import LiveLabels, LiveNames, LiveStrings, LiveValues, LiveVoters
from recollect.service.memory.live_table import Ends, LiveRows


@dataclass(frozen=True, eq=False)
class Status:
    """Facts about the live entries of a memory.

    Attributes:
        instances: Number of instances that are present.
        labels: Number of labels that are present.
        corrections: Number of corrections that are present.
        live_keys: Number of live keys of instances, labels and corrections, with those that were replaced or removed.
        skipped: Number of entries that named a label that the version does not have.
        oldest_seconds: Time of the oldest entry, in seconds since 1970; None without entries.
    """

    instances: int
    labels: int
    corrections: int
    live_keys: int
    skipped: int
    oldest_seconds: float | None


@dataclass(frozen=True, eq=False)
class View:
    """The tables of a memory with live entries.

    Attributes:
        sequence: Sequence number of the last entry.
        status: Facts about the entries.
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
        labels: The labels.
        instance_uids: Uids of the instances, by number.
        instance_texts: Their texts.
        instances: The live instances.
        corrections: The corrections of labels.
        instance_ends: The ends of the instances of the bundle.
        label_key_ends: The ends of the label keys of the bundle.
        words: The word indexes; None if the bundle has none.
        names: The names of the labels; None if the bundle has no ranker.
        uids: The uids of the bundle's instances.
    """

    sequence: int
    status: Status
    values: LiveValues
    voters: LiveVoters
    labels: LiveLabels
    instance_uids: LiveStrings
    instance_texts: LiveStrings
    instances: LiveRows
    corrections: Corrections
    instance_ends: Ends
    label_key_ends: Ends
    words: LexicalIndex | None
    names: LiveNames | None
    uids: UidIndex

    def instance(self, uid: str) -> int | None:
        """The number of the present instance with a uid."""
        if (row := self.instances.find(uid)) is not None:
            return row + len(self.instance_ends.ends)
        row = self.uids.find(uid)
        return row if row is not None and self.instance_ends.present(np.array(row)) else None


# Number of uids whose hashes are computed together; this limits the memory.
_BLOCK_ROWS = 1 << 16


class UidIndex:
    """Finds the row of a uid in a table.

    A bundle has no such index, because answers do not need it. It is built at the first change of a memory, and takes
    12 bytes for each instance.

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
