"""The lexical index of a bundle: one word index of the instance texts, and one of the label texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from recollect.service.bundle.arrays import map_offsets, map_positions
from recollect.service.bundle.files import INSTANCE_WORDS, LABEL_WORDS, posting_files
from recollect.service.lexical.postings import Postings, invert, map_terms, map_weights, write_postings
from recollect.service.lexical.word_index import Query, WordIndex, weigh

# Opens a file of the index: a function, the name of the file, and the function's other arguments.
FileOpener = Callable[..., Any]


class FoundByWords(NamedTuple):
    """The keys of the most similar texts of one kind: rows of instances, or positions of labels.

    Places without a key have key -1 and similarity -inf.
    """

    similarities: Float[np.ndarray, "query top"]
    rows: Int[np.ndarray, "query top"]

    @classmethod
    def of(
        cls, found: Sequence[tuple[Float[np.ndarray, " found"], Int[np.ndarray, " found"]]], top: int
    ) -> FoundByWords:
        """Join the lists of several queries."""
        similarities = np.full((len(found), top), -np.inf, dtype=np.float32)
        rows = np.full((len(found), top), -1, dtype=np.int64)
        for query, (values, own) in enumerate(found):
            similarities[query, : len(own)], rows[query, : len(own)] = values, own
        return cls(similarities, rows)


class LexicalIndex:
    """Finds instances and labels by their words; immutable.

    Attributes:
        instances: Index of the instance texts.
        labels: Index of the label texts.
    """

    def __init__(self, instances: WordIndex, labels: WordIndex) -> None:
        self.instances, self.labels = instances, labels

    @classmethod
    def of_texts(cls, instance_texts: Sequence[str], label_texts: Sequence[str]) -> LexicalIndex:
        """Build an index in this process's memory, without files."""
        return cls(*(WordIndex(invert(texts), len(texts)) for texts in (instance_texts, label_texts)))

    @classmethod
    def open(cls, folder: Path, instances: int, labels: int) -> LexicalIndex:
        """Map the index in a folder.

        Args:
            folder: Folder that `write_lexical_index` has written to.
            instances: Number of instances.
            labels: Number of labels.

        Raises:
            BundleError: If a file is missing, or is not the index of so many texts.
        """
        return cls.open_with(lambda function, name, *rest: function(folder / name, *rest), instances, labels)

    @classmethod
    def open_with(cls, open_file: FileOpener, instances: int, labels: int) -> LexicalIndex:
        """Open the index as `open` does, but each file with `open_file`, as `Components.open` opens files."""
        return cls(_open_words(open_file, INSTANCE_WORDS, instances), _open_words(open_file, LABEL_WORDS, labels))

    def search(
        self, texts: Sequence[str], top: int, lambda_: float = 0.5
    ) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
        """The similarities and keys of the keys whose texts are most similar to each query.

        A key is numbered as in the memory: instances by their row, labels after the last instance. At equal similarity,
        the lower key comes first. Places without a key have key -1 and similarity -inf.

        Args:
            texts: The queries.
            top: Number of keys to find for each query.
            lambda_: Weight of instances against labels; at 1 only instances are searched, at 0 only labels.
        """
        similarities = np.full((len(texts), top), -np.inf, dtype=np.float32)
        keys = np.full((len(texts), top), -1, dtype=np.int64)
        for nth, text in enumerate(texts):
            query = self.weigh(text)
            found = []
            if lambda_ > 0:
                found.append(self.instances.search(query, top))
            if lambda_ < 1:
                values, rows = self.labels.search(query, top)
                found.append((values, rows + len(self.instances)))
            value, key = (np.concatenate(part) for part in zip(*found, strict=True))
            best = np.lexsort((key, -value))[:top]
            similarities[nth, : len(best)], keys[nth, : len(best)] = value[best], key[best]
        return similarities, keys

    def search_each(self, texts: Sequence[str], top: int) -> tuple[FoundByWords, FoundByWords]:
        """Search as `search` does, but return two lists for each query: the top instances, and the top labels."""
        terms = [self.weigh(text) for text in texts]
        instances, labels = (
            FoundByWords.of([part.search(each, top) for each in terms], top) for part in (self.instances, self.labels)
        )
        return instances, labels

    def weigh(self, text: str) -> Query:
        """Weigh the terms of a query by their rarity among all texts, for searches of `instances` and `labels`."""
        return weigh(text, (self.instances, self.labels))


def write_lexical_index(folder: Path, instance_texts: Iterable[str], label_texts: Iterable[str]) -> None:
    """Write the files of an index. The texts can be streams, in the order of the memory."""
    write_postings(folder, INSTANCE_WORDS, invert(instance_texts))
    write_postings(folder, LABEL_WORDS, invert(label_texts))


def _open_words(open_file: FileOpener, name: str, texts: int) -> WordIndex:
    terms_file, offsets_file, rows_file, weights_file = posting_files(name)
    weights = open_file(map_weights, weights_file)
    terms = open_file(map_terms, terms_file)
    postings = Postings(
        terms=terms,
        offsets=open_file(map_offsets, offsets_file, len(terms), len(weights)),
        rows=open_file(map_positions, rows_file, len(weights), texts),
        weights=weights,
    )
    return WordIndex(postings, texts)
