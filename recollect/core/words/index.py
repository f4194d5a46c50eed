"""The lexical index of a bundle: one word index of the instance texts, and one of the label texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core import kernels
from recollect.core.bundle.arrays import map_offsets, map_positions
from recollect.core.bundle.files import INSTANCE_WORDS, LABEL_WORDS, posting_files
from recollect.core.neighbours import Neighbours
from recollect.core.words.postings import Postings, invert, map_terms, map_weights, write_postings
from recollect.core.words.terms import Words
from recollect.core.words.word_index import WordIndex

# Opens a file of the index: a function, the name of the file, and the function's other arguments.
FileOpener = Callable[..., Any]
# Number of keys that vote by words. On library titles, 50 keys were as good as 200.
TOP_WORDS = 50


class LexicalIndex:
    """Finds instances and labels by their words; immutable."""

    def __init__(self, instances: WordIndex, labels: WordIndex) -> None:
        self.instances, self.labels = instances, labels

    @classmethod
    def of_texts(cls, instance_texts: Sequence[str], label_texts: Sequence[str]) -> LexicalIndex:
        """Build an index in this process's memory, without files."""
        return cls(*(WordIndex(invert(texts), len(texts)) for texts in (instance_texts, label_texts)))

    @classmethod
    def open(cls, folder: Path, instances: int, labels: int) -> LexicalIndex:
        """Map the index in a folder that `write_lexical_index` has written to."""
        return cls.open_with(lambda function, name, *rest: function(folder / name, *rest), instances, labels)

    @classmethod
    def open_with(cls, open_file: FileOpener, instances: int, labels: int) -> LexicalIndex:
        """Open the index as `open` does, but each file with `open_file`, as `Components.open` opens files."""
        return cls(_open_words(open_file, INSTANCE_WORDS, instances), _open_words(open_file, LABEL_WORDS, labels))

    def search(self, words: Words, top: int = TOP_WORDS) -> tuple[Neighbours, Neighbours]:
        """The texts that are most similar to each query: the top instances, and the top labels by their positions.

        At equal similarity, the lower key comes first.
        """
        offsets, terms, frequencies = kernels.count_terms(*words.terms)
        instances, labels = self.instances.look_up(terms), self.labels.look_up(terms)
        counts = instances.texts + labels.texts
        rarity = np.log1p((self.instances.present + self.labels.present) / np.maximum(counts, 1)) ** 2
        impacts = (1 + np.log(frequencies)) * rarity
        return (
            self.instances.search(offsets, terms, impacts, instances, top),
            self.labels.search(offsets, terms, impacts, labels, top),
        )


def write_lexical_index(folder: Path, instance_texts: Iterable[str], label_texts: Iterable[str]) -> None:
    """Write the files of an index. The texts can be streams, in the order of the memory."""
    write_postings(folder, INSTANCE_WORDS, invert(instance_texts))
    write_postings(folder, LABEL_WORDS, invert(label_texts))


def _open_words(open_file: FileOpener, name: str, texts: int) -> WordIndex:
    terms_file, offsets_file, rows_file, weights_file = posting_files(name)
    weights = open_file(map_weights, weights_file)
    terms = open_file(map_terms, terms_file)
    postings = Postings.of(
        terms=terms,
        offsets=open_file(map_offsets, offsets_file, len(terms), len(weights)),
        rows=open_file(map_positions, rows_file, len(weights), texts),
        weights=weights,
    )
    return WordIndex(postings, texts)
