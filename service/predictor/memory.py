"""The memory that answers queries: a bundle's memory, or a view of it with the entries of a log.

A predictor replaces its memory as a whole. A computation reads one memory from its beginning to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from recollect.service.bundle.bundle import Bundle
from recollect.service.lexical.index import LexicalIndex
from recollect.service.memory.delta import Delta
from recollect.service.memory.entries import LoggedEntry
from recollect.service.memory.layers import Instances, Labels, LiveInstances
from recollect.service.memory.view import View
from recollect.service.milvus.collection import open_searcher
from recollect.service.milvus.connection import Connection
from recollect.service.predictor.answers import Reason
from recollect.service.predictor.exhaustive import ExhaustiveRanker
from recollect.service.predictor.live_keys import LiveKeyIndex
from recollect.service.predictor.reranking import Reranker
from recollect.service.predictor.searcher import Searcher
from recollect.service.predictor.words import WordVoter
from recollect.service.ranking.features import LabelFacts
from recollect.service.ranking.ranker import Ranker
from recollect.service.settings import Device


@dataclass(frozen=True, eq=False)
class Memory:
    """Everything that an answer reads, except the encoder and the options.

    Attributes:
        searcher: Finds the nearest keys.
        instances: The instances, by number.
        labels: The labels.
        words: Finds keys by words; None without a lexical index.
        reranker: Orders labels; None without a ranker.
        exhaustive: Ranks the labels that a filter admits.
        view: The live entries; None for the memory of a bundle.
        sequence: Sequence number of the last entry that the memory knows; 0 if it knows none.
        digest: Digest of the log up to this entry; empty without a log.
    """

    searcher: Searcher
    instances: Instances
    labels: Labels
    words: WordVoter | None
    reranker: Reranker | None
    exhaustive: ExhaustiveRanker
    view: View | None = None
    sequence: int = 0
    digest: bytes = b""

    @classmethod
    def open(cls, bundle: Bundle, device: Device, milvus: Connection | None = None) -> Memory:
        """Open the memory of a bundle.

        Args:
            bundle: The bundle.
            device: Device that searches.
            milvus: The connection to Milvus, for a bundle whose keys are there.

        Raises:
            BundleError: If a file or a collection does not open, or does not fit to the manifest.
            EngineError: If the keys are in Milvus, and it does not answer.
        """
        searcher = Searcher.open(bundle, device) if milvus is None else open_searcher(bundle.manifest, milvus)
        values = bundle.instances.values
        words, reranker = None, None
        if bundle.manifest.has_lexical_index:
            counts = bundle.manifest.counts
            index = LexicalIndex.open_with(bundle.components.open, counts.instances, counts.labels)
            words = WordVoter(index, values)
        if bundle.manifest.has_ranker:
            reranker = Reranker(Ranker.open(bundle, values), values)
        exhaustive = ExhaustiveRanker(bundle.instances.voters, searcher, values)
        sequence = bundle.manifest.memory_sequence
        return cls(searcher, bundle.instances, bundle.labels, words, reranker, exhaustive, sequence=sequence)

    def reasons(self, terms: Sequence[tuple[int, float, bool]]) -> list[Reason]:
        """Describe terms of a score: a key, its share, and whether the key was found by words."""
        return [self._reason(key, share, "words" if by_words else None) for key, share, by_words in terms]

    def _reason(self, key: int, share: float, by: str | None) -> Reason:
        instances, label = self.instances, key - self.instances.values.instances
        if label < 0:
            return Reason("instance", instances.uids[key], instances.texts[key], share, by)
        if label < len(self.labels):
            return Reason("label", self.labels.uids[label], self.labels.texts[label], share, by)
        assert self.view is not None, "only a memory with live entries has corrections"
        corrections, row = self.view.corrections.rows, label - len(self.labels)
        return Reason("correction", corrections.uids[row], corrections.texts[row], share)


class LiveMemory:
    """Applies the entries of a log to the memory of a bundle; thread-safe.

    Args:
        bundle: The bundle.
        memory: Its memory.
    """

    def __init__(self, bundle: Bundle, memory: Memory) -> None:
        self._memory, self._digest, self._write = memory, b"", threading.Lock()
        words = None if memory.words is None else memory.words.index
        names = None if memory.reranker is None else memory.reranker.ranker.facts.names
        self._delta = Delta(bundle, words, names)

    def apply(self, entries: Sequence[LoggedEntry], digest: bytes | None = None) -> Memory:
        """Apply entries in order, and return the memory after them.

        Args:
            entries: The entries.
            digest: Digest of the log up to the last entry; None if it is the one before.
        """
        with self._write:
            view = self._delta.apply(entries)
            self._digest = self._digest if digest is None else digest
            return self._with(view)

    def _with(self, view: View) -> Memory:
        """The memory of a view."""
        mapped, values, first = self._memory, view.values, len(view.instance_ends.ends)
        instances, labels = mapped.searcher.instances, mapped.searcher.labels
        searcher = Searcher(
            LiveKeyIndex(instances, view.instance_ends, view.instances, lambda keys: keys - first, values.instances),
            LiveKeyIndex(labels, view.label_key_ends, view.labels.live, view.labels.rows.__getitem__, values.labels),
        )
        reranker = None
        if mapped.reranker is not None and view.names is not None:
            facts = LabelFacts(view.labels.counts, view.names)
            reranker = Reranker(mapped.reranker.ranker.with_memory(facts, values), values)
        return Memory(
            searcher=searcher,
            instances=LiveInstances(values, view.voters, view.instance_uids, view.instance_texts),
            labels=view.labels,
            words=None if view.words is None else WordVoter(view.words, values),
            reranker=reranker,
            exhaustive=ExhaustiveRanker(view.voters, searcher, values),
            view=view,
            sequence=view.sequence,
            digest=self._digest,
        )
