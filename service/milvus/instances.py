"""The instances of a memory in Milvus. A process keeps only the labels and counts of recently found instances."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.service.bundle.instances import Instances, UidFinder
from recollect.service.bundle.values import Values, Voters
from recollect.service.milvus.collection import LABELS, MOST_HITS, ROW, TEXT, UID, KeyCollection

# Number of instances whose labels are kept.
_KEPT_INSTANCES = 100_000
# Number of uids that are named in one filter.
_NAMED_UIDS = 512


class InstanceCollection(Values):
    """The keys and values of instances: a search also brings the labels of the instances that it finds.

    Args:
        collection: The collection.
        labels: Number of labels of the memory.

    Attributes:
        fields: The fields of a row that `keep` reads.
    """

    def __init__(self, collection: KeyCollection, labels: int) -> None:
        self.keys, self.labels, self.fields = collection.keys, labels, (LABELS,)
        self._collection = collection
        self._recent: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self.similarities = collection.similarities

    @property
    def instances(self) -> int:
        return self.keys

    def search(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        """Find the nearest instances of each query."""
        similarities, rows, hits = self._collection.search_with(vectors, top_b, *self.fields)
        self.keep((row, hit.get("entity", hit)) for found in hits for row, hit in zip(found.ids, found, strict=True))
        return similarities, rows

    def gather(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        labels = self._fetch(rows.tolist())
        place = np.repeat(np.arange(len(labels)), [len(own) for own in labels])
        found = np.concatenate([np.empty(0, dtype=np.int32), *labels])
        if len(found) and not 0 <= found.min() <= found.max() < self.labels:
            raise self._collection.changed(
                f"labels from 0 to {self.labels - 1:,}", f"{found.min():,} to {found.max():,}"
            )
        return place, found

    def log_counts_of(self, keys: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | float:
        return 0.0

    def _fetch(self, rows: Sequence[int]) -> list[np.ndarray]:
        """The labels of some instances: the kept ones, and the others from Milvus."""
        with self._lock:
            found = {row: self._recent[row] for row in rows if row in self._recent}
        if missing := [row for row in rows if row not in found]:
            found |= self.keep(self._collection.rows(missing, *self.fields).items())
        return [found[row] for row in rows]

    def keep(self, rows: Iterable[tuple[int, Any]]) -> dict[int, np.ndarray]:
        """Keep the labels of some rows, from their fields."""
        read = {row: np.array(hit[LABELS], dtype=np.int32) for row, hit in rows}
        with self._lock:
            for row, own in read.items():
                self._recent[row] = own
                self._recent.move_to_end(row)
            while len(self._recent) > _KEPT_INSTANCES:
                self._recent.popitem(last=False)
        return read


class CollectionVoters(Voters):
    """The instances that vote for each label.

    Args:
        collection: The collection of the instances.
        counts: At least the number of instances that vote for each label.
    """

    most_compared = MOST_HITS

    def __init__(self, collection: KeyCollection, counts: Int[np.ndarray, " label"]) -> None:
        self._collection, self._counts = collection, counts

    @property
    def pairs(self) -> int:
        return int(self._counts.sum())

    def counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        found: np.ndarray = self._counts[labels]
        return found

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        votes = int(self._counts[labels].sum())
        if not votes:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        filter_ = f"array_contains_any({LABELS}, {labels.tolist()})"
        query = self._collection.query if votes <= MOST_HITS else self._collection.query_all
        places = {label: place for place, label in enumerate(labels.tolist())}
        pairs = [
            (places[label], hit[ROW]) for hit in query(filter_, LABELS) for label in hit[LABELS] if label in places
        ]
        place, row = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return place, row


class CollectionStrings:
    """The uids or texts of the rows of a collection."""

    def __init__(self, collection: KeyCollection, field: str) -> None:
        self._collection, self._field = collection, field

    def __len__(self) -> int:
        return self._collection.keys

    def __getitem__(self, row: int) -> str:
        return self.take([row])[0]

    def take(self, rows: Sequence[int]) -> list[str]:
        found = self._collection.rows(rows, self._field)
        return [found[row][self._field] for row in rows]


class CollectionUids(UidFinder):
    """Finds instances by their uids."""

    def __init__(self, collection: KeyCollection, instances: InstanceCollection) -> None:
        self._collection, self._instances = collection, instances
        self._expected: dict[str, int | None] = {}

    def find(self, uid: str) -> int | None:
        expected = self._expected  # a thread that applies entries may replace it
        return expected[uid] if uid in expected else self._look_up([uid])[uid]

    def expect(self, uids: Sequence[str]) -> None:
        found: dict[str, int | None] = {}
        for start in range(0, len(uids), _NAMED_UIDS):
            found |= self._look_up(uids[start : start + _NAMED_UIDS])
        self._expected = found

    def _look_up(self, uids: Sequence[str]) -> dict[str, int | None]:
        """The rows of some uids. Their labels are read too, because a change of an instance needs them."""
        found: dict[str, int | None] = dict.fromkeys(uids)
        quoted = ", ".join(json.dumps(uid, ensure_ascii=False) for uid in found)
        hits = {hit[ROW]: hit for hit in self._collection.query(f"{UID} in [{quoted}]", UID, *self._instances.fields)}
        for row in sorted(hits, reverse=True):
            found[hits[row][UID]] = row
        self._instances.keep(hits.items())
        return found


def instances_of(found: InstanceCollection, collection: KeyCollection, counts: Int[np.ndarray, " label"]) -> Instances:
    """The instances of a collection.

    Args:
        found: Their keys and values.
        collection: The collection.
        counts: At least the number of instances that vote for each label.
    """
    return Instances(
        values=found,
        voters=CollectionVoters(collection, counts),
        uids=CollectionStrings(collection, UID),
        texts=CollectionStrings(collection, TEXT),
        finder=CollectionUids(collection, found),
    )
