"""Examples for the ranker: the candidates of instances that a memory without their whole fold finds.

A memory that lacks only the query itself would reveal the labels of the query: each of them has one instance fewer than
it has for all other queries. A memory that lacks the whole fold treats true and other labels alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.index_builder.ranking.candidate_source import Block, CandidateSource
from recollect.trainer.memory.memory import Memory
from recollect.trainer.progress_bar import progress_bar


@dataclass(frozen=True)
class Examples:
    """The candidates of some queries: all of them are examples, not only the labels with the most votes.

    Attributes:
        query: The number of each candidate's query, in rising order.
        label: The label of each candidate.
        score: The votes for each candidate.
        features: The features of each candidate, in the order of `names`.
        names: Names of the features.
        true: Whether each candidate is a true label of its query.
    """

    query: Int[np.ndarray, " candidate"]
    label: Int[np.ndarray, " candidate"]
    score: Float[np.ndarray, " candidate"]
    features: Float[np.ndarray, "candidate feature"]
    names: tuple[str, ...]
    true: Bool[np.ndarray, " candidate"]

    def __getitem__(self, candidates: Bool[np.ndarray, " candidate"] | Int[np.ndarray, " chosen"]) -> Examples:
        """Some of the candidates, in the given order."""
        return Examples(
            self.query[candidates],
            self.label[candidates],
            self.score[candidates],
            self.features[candidates],
            self.names,
            self.true[candidates],
        )

    @classmethod
    def join(cls, parts: Sequence[Examples]) -> Examples:
        """Join examples of the same features."""
        return cls(
            np.concatenate([part.query for part in parts]),
            np.concatenate([part.label for part in parts]),
            np.concatenate([part.score for part in parts]),
            np.concatenate([part.features for part in parts]),
            parts[0].names,
            np.concatenate([part.true for part in parts]),
        )


class ExampleSource:
    """Computes examples from a memory.

    Args:
        memory: The memory.
        with_words: Whether the features of a lexical index are computed.
    """

    def __init__(self, memory: Memory, with_words: bool) -> None:
        self._memory, self._source = memory, CandidateSource(memory, with_words)
        self._truth = memory.label_sets.to_csr(memory.plan.labels)
        self._filtered = memory.filtered_labels.to_csr(memory.plan.labels)  # labels that are removed from answers

    def cross(self, rows: Int[np.ndarray, " query"], fold: Int[np.ndarray, " query"]) -> Examples:
        """Compute the examples of instances, each from a memory without all instances of its fold.

        Args:
            rows: The instances, in rising order.
            fold: The fold of each of these instances.
        """
        parts = []
        with progress_bar(len(rows), "query", "features") as bar:
            for number in np.unique(fold):
                queries = np.flatnonzero(fold == number)
                absent = rows[queries]
                vectors = self._memory.queries(absent)
                texts = [self._source.texts[row] for row in absent.tolist()]
                for block in self._source.find(texts, vectors, absent):
                    numbers = queries[block.first : block.first + block.queries]
                    parts.append(self._examples(block, numbers, rows[numbers]))
                    bar.update(block.queries)
        joined = Examples.join(parts)
        return joined[np.argsort(joined.query, kind="stable")]

    def _examples(self, block: Block, numbers: Int[np.ndarray, " query"], rows: Int[np.ndarray, " query"]) -> Examples:
        """The examples of a block, whose queries have these numbers and these rows."""
        candidates = block.candidates
        pairs = candidates.query, candidates.label
        examples = Examples(
            query=numbers[candidates.query],
            label=candidates.label,
            score=candidates.score,
            features=block.features,
            names=self._source.features,
            true=np.asarray(self._truth[rows][pairs]).ravel() > 0,
        )
        return examples[np.asarray(self._filtered[rows][pairs]).ravel() == 0]
