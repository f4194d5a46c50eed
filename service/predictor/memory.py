"""The memory that answers queries: a bundle's memory, or a view of it with the entries of a log.

A predictor replaces its memory as a whole. A computation reads one memory from its beginning to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from service.bundle.bundle import Bundle
from service.bundle.strings import StringTable
from service.bundle.values import Values, Voters
from service.lexical.index import LexicalIndex
from service.memory.delta import Delta
from service.memory.entries import LoggedEntry
from service.memory.layers import Labels, LiveStrings
from service.memory.view import View
from service.predictor.answers import Reason
from service.predictor.exhaustive import ExhaustiveRanker
from service.predictor.live_keys import LiveKeyIndex
from service.predictor.reranking import Reranker
from service.predictor.searcher import Searcher
from service.predictor.words import WordVoter
from service.ranking.features import LabelFacts
from service.ranking.ranker import Ranker
from service.settings import Device


@dataclass(frozen=True, eq=False)
class Memory:
    """Everything that an answer reads, except the encoder and the options.

    Attributes:
        searcher: Finds the nearest keys.
        values: The labels that each instance votes for.
        labels: The labels.
        instance_uids: Uids of the instances, by number.
        instance_texts: Their texts.
        words: Finds keys by words; None without a lexical index.
        reranker: Orders labels; None without a ranker.
        exhaustive: Ranks the labels that a filter admits.
        view: The live entries; None for the memory of a bundle.
        sequence: Sequence number of the last entry that the memory knows; 0 if it knows none.
        digest: Digest of the log up to this entry; empty without a log.
    """

    searcher: Searcher
    values: Values
    labels: Labels
    instance_uids: StringTable | LiveStrings
    instance_texts: StringTable | LiveStrings
    words: WordVoter | None
    reranker: Reranker | None
    exhaustive: ExhaustiveRanker
    view: View | None = None
    sequence: int = 0
    digest: bytes = b""

    @classmethod
    def open(cls, bundle: Bundle, device: Device) -> Memory:
        """Open the memory of a bundle.

        Raises:
            BundleError: If a file does not open, or does not fit to the manifest.
        """
        searcher = Searcher.open(bundle, device)
        values = bundle.values
        words, reranker = None, None
        if bundle.manifest.has_lexical_index:
            counts = bundle.manifest.counts
            index = LexicalIndex.open_with(bundle.components.open, counts.instances, counts.labels)
            words = WordVoter(index, values)
        if bundle.manifest.has_ranker:
            reranker = Reranker(Ranker.open(bundle, values), values)
        exhaustive = ExhaustiveRanker(Voters(bundle.voter_indptr, bundle.voter_indices), searcher, values)
        return cls(
            searcher,
            values,
            bundle.labels,
            bundle.instance_uids,
            bundle.instance_texts,
            words,
            reranker,
            exhaustive,
            sequence=bundle.manifest.memory_sequence,
        )

    def reason(self, key: int, share: float, by_words: bool) -> Reason:
        """Describe one term of a score."""
        instances, by = self.values.instances, "words" if by_words else None
        if key < instances:
            return Reason("instance", self.instance_uids[key], self.instance_texts[key], share, by)
        label = key - instances
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
        self._delta = Delta(bundle, memory.values, words, names)

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
            values=values,
            labels=view.labels,
            instance_uids=view.instance_uids,
            instance_texts=view.instance_texts,
            words=None if view.words is None else WordVoter(view.words, values),
            reranker=reranker,
            exhaustive=ExhaustiveRanker(view.voters, searcher, values),
            view=view,
            sequence=view.sequence,
            digest=self._digest,
        )
