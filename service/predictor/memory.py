"""The memory that answers queries: a bundle's memory, or a view of it with the entries of a log.

A predictor replaces its memory as a whole. A computation reads one memory from its beginning to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.instances import Instances
from recollect.service.lexical.index import LexicalIndex
from recollect.service.memory.delta import Delta
from recollect.service.memory.entries import LoggedEntry
from recollect.service.memory.layers import Labels
from recollect.service.memory.uid_index import UidIndex
from recollect.service.memory.view import View
from recollect.service.milvus.keys import EngineKeys
from recollect.service.predictor.answers import Reason
from recollect.service.predictor.exhaustive import ExhaustiveRanker
from recollect.service.predictor.live_keys import LiveKeyIndex
from recollect.service.predictor.reranking import Reranker
from recollect.service.predictor.searcher import RemoteKeys, Searcher
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
    def open(cls, bundle: Bundle, device: Device, keys: EngineKeys | None = None) -> Memory:
        """Open the memory of a bundle.

        Args:
            bundle: The bundle.
            device: Device that searches.
            keys: The keys and instances of a bundle whose keys are in an engine.

        Raises:
            BundleError: If a file does not open, or does not fit to the manifest.
        """
        instances: Instances
        if keys is None:
            searcher, instances = Searcher.open(bundle, device), bundle.instances
        else:
            searcher, instances = Searcher(RemoteKeys(keys.of_instances), RemoteKeys(keys.of_labels)), keys.instances
        values = instances.values
        words, reranker = None, None
        if bundle.manifest.has_lexical_index:
            counts = bundle.manifest.counts
            index = LexicalIndex.open_with(bundle.components.open, counts.instances, counts.labels)
            words = WordVoter(index, values)
        if bundle.manifest.has_ranker:
            reranker = Reranker(Ranker.open(bundle, values), values)
        exhaustive = ExhaustiveRanker(instances.voters, searcher, values)
        sequence = bundle.manifest.memory_sequence
        return cls(searcher, instances, bundle.labels, words, reranker, exhaustive, sequence=sequence)

    def reasons(self, terms: Sequence[tuple[int, float, bool]]) -> list[Reason]:
        """Describe terms of a score: a key, its share, and whether the key was found by words."""
        instances = self.instances.values.instances
        rows = [key for key, _, _ in terms if key < instances]
        described = zip(self.instances.uids.take(rows), self.instances.texts.take(rows), strict=True)
        return [
            Reason("instance", *next(described), share, _by(by_words))
            if key < instances
            else self._other_reason(key - instances, share, by_words)
            for key, share, by_words in terms
        ]

    def _other_reason(self, label: int, share: float, by_words: bool) -> Reason:
        """Describe a term whose key is a label, or a correction."""
        if label < len(self.labels):
            return Reason("label", self.labels.uids[label], self.labels.texts[label], share, _by(by_words))
        assert self.view is not None, "only a memory with live entries has corrections"
        corrections, row = self.view.corrections.rows, label - len(self.labels)
        return Reason("correction", corrections.uids[row], corrections.texts[row], share)


def _by(by_words: bool) -> str | None:
    return "words" if by_words else None


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
        uids = memory.instances.finder or UidIndex(bundle.instances.uids)
        self._delta = Delta(bundle, memory.instances, uids, words, names)

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
            instances=Instances(values, view.voters, view.instance_uids, view.instance_texts),
            labels=view.labels,
            words=None if view.words is None else WordVoter(view.words, values),
            reranker=reranker,
            exhaustive=ExhaustiveRanker(view.voters, searcher, values),
            view=view,
            sequence=view.sequence,
            digest=self._digest,
        )
