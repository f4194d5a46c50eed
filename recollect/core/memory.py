"""The memory that answers queries: a snapshot of a bundle's memory with the entries of a log.

A predictor replaces its memory as a whole. A computation reads one memory from its beginning to its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from recollect.core.answers import Reason
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.manifest import Manifest
from recollect.core.bundle.values import Values
from recollect.core.reranker.ranker import Ranker
from recollect.core.search.filters import AdmittedKeys, Filters
from recollect.core.search.live_keys import LiveKeyIndex
from recollect.core.search.searcher import Keys, Searcher
from recollect.core.settings import ConnectionSettings, Device
from recollect.core.tables.entries import LoggedEntry
from recollect.core.tables.rows import Rows
from recollect.core.tables.snapshot import Snapshot, SnapshotBuilder
from recollect.core.tables.tables import Labels
from recollect.core.words.index import LexicalIndex

# Longest text of a term of a score, in characters. An explanation repeats the text of a key for each label.
_MOST_CHARACTERS = 500


@dataclass(frozen=True, eq=False)
class Memory:
    """Everything that an answer reads, except the encoder and the options.

    Attributes:
        filters: Makes the filters of labels.
        digest: Digest of the log up to the last entry of the snapshot; empty without a log.
    """

    manifest: Manifest
    snapshot: Snapshot
    searcher: Searcher
    words: LexicalIndex | None
    ranker: Ranker | None
    admitted: AdmittedKeys
    filters: Filters
    digest: bytes = b""

    @classmethod
    def of(
        cls, manifest: Manifest, snapshot: Snapshot, searcher: Searcher, ranker: Ranker | None, digest: bytes = b""
    ) -> Memory:
        """The memory of a snapshot, from the index of the bundle's keys, and its ranker."""
        instances, labels, values = snapshot.instances, snapshot.labels, snapshot.values
        searcher = Searcher(
            _live_keys(searcher.instances, instances), _live_keys(searcher.labels, labels.rows, labels.row_of)
        )
        if ranker is not None and snapshot.names is not None:
            facts = dataclasses.replace(ranker.facts, counts=labels.counts, names=snapshot.names)
            ranker = Ranker(ranker.model, facts, values, ranker.cross)
        admitted = AdmittedKeys(snapshot.voters, searcher)
        filters = Filters(labels, snapshot.voters)
        return cls(manifest, snapshot, searcher, snapshot.words, ranker, admitted, filters, digest)

    @property
    def values(self) -> Values:
        return self.snapshot.values

    @property
    def labels(self) -> Labels:
        return self.snapshot.labels

    @property
    def sequence(self) -> int:
        """Sequence number of the last entry that the memory knows; 0 if it knows none."""
        return self.snapshot.sequence

    def describe(self, key: int) -> tuple[str, str, str]:
        """Kind, uid and text of a key, for the terms of a score."""
        instances, label = self.snapshot.instances, key - self.values.instances
        if label < 0:
            return "instance", instances.uids[key], _cut(instances.texts[key])
        return "label", self.labels.uids[label], _cut(self.labels.texts[label])

    def correction(self, row: int, share: float) -> Reason:
        """Describe a correction, which is a negative term of a score."""
        corrections = self.snapshot.corrections.rows
        return Reason("correction", corrections.uids[row], _cut(corrections.texts[row]), share)


class LiveMemory:
    """Applies the entries of a log to the memory of a bundle, in one thread at a time."""

    def __init__(
        self, bundle: Bundle, device: Device, connections: ConnectionSettings | None = None, threads: int = 1
    ) -> None:
        manifest, components = bundle.manifest, bundle.components
        counts, words = manifest.counts, None
        self._manifest = manifest
        if manifest.has_lexical_index:
            words = LexicalIndex.open_with(components.open, counts.instances, counts.labels)
        self._ranker = Ranker.open(bundle, threads, connections) if manifest.has_ranker else None
        names = None if self._ranker is None else self._ranker.facts.names
        self._builder, self._digest = SnapshotBuilder(bundle, words, names), b""
        self.searcher = Searcher.open(bundle, device, connections)  # last, because an error above would leave it open

    def apply(self, entries: Sequence[LoggedEntry], digest: bytes | None = None) -> Memory:
        """Apply entries in order, and return the memory after them. Without a `digest`, the one before stays."""
        snapshot = self._builder.apply(entries)
        self._digest = self._digest if digest is None else digest
        return Memory.of(self._manifest, snapshot, self.searcher, self._ranker, self._digest)


def _cut(text: str) -> str:
    """The beginning of a text, with an ellipsis if the rest is missing."""
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "\N{HORIZONTAL ELLIPSIS}"


def _live_keys(bundle_keys: Keys, rows: Rows, row_of: Int[np.ndarray, " key"] | None = None) -> Keys:
    """The keys of a snapshot; the index of the bundle itself without live or removed rows."""
    return LiveKeyIndex(bundle_keys, rows, row_of) if len(rows.vectors) or rows.removed_bundle_rows else bundle_keys
