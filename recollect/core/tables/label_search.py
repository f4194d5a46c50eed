"""Label search: finds the labels of a memory by the beginnings of their uids, and by their texts and names."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.bundle import LabelTable
from recollect.core.bundle.label_fields import from_json, names_of
from recollect.core.tables.tables import Labels
from recollect.core.words.text_search import TextSearch

# Number of labels whose uids begin with a search text that are considered.
_MAX_UIDS = 1_000


class LabelSearch:
    """Finds labels of a bundle, and live labels; thread-safe.

    The first search builds the search of the texts, and of the names in all languages. It takes about the length of
    each text or name, and 40 bytes.

    Args:
        labels: The labels of the bundle.
    """

    def __init__(self, labels: LabelTable) -> None:
        self._labels, self._build = labels, threading.Lock()
        self._of_bundle: _Texts | None = None
        self._with_live: tuple[int, _Texts] | None = None

    def find(self, labels: Labels, text: str, limit: int) -> list[int]:
        """The positions of at most `limit` labels, the best label first.

        The order: the label with the uid `text`; texts that begin with `text`; uids that begin with it; texts with a
        word that begins with it; other texts that contain it; similar texts.

        Args:
            labels: The labels of the memory.
            text: The search text.
            limit: Maximum number of labels.
        """
        found: dict[int, None] = {}
        for positions in self._groups(labels, text):
            found |= dict.fromkeys(itertools.islice(positions, limit))
            if len(found) >= limit:
                break
        return [*found][:limit]

    def _groups(self, labels: Labels, text: str) -> Iterator[Iterable[int]]:
        position = labels.position(text)
        yield [] if position is None else [position]
        texts = self._texts(labels)
        groups = (labels.present_positions(texts.rows[found]).tolist() for found in texts.search.search(text))
        yield from itertools.islice(groups, 1)
        yield self._by_uid(labels, text)
        yield from groups

    def _texts(self, labels: Labels) -> _Texts:
        """The search of the texts and names: those of the bundle, then all live ones."""
        live, first = len(labels.rows.vectors), labels.rows.bundle_rows
        with self._build:
            if self._of_bundle is None:
                fields = self._labels.fields
                names = [] if fields is None else _names(enumerate(fields.json[row] for row in range(first)))
                texts = _Texts(TextSearch(self._labels.texts), np.arange(first))
                self._of_bundle = texts.add(names)
            if not live:
                return self._of_bundle
            if self._with_live is None or self._with_live[0] != live:
                live_texts = [*enumerate(labels.rows.texts.live[:live], first)]
                fields_of = labels.live_fields.by_row
                names = _names((row, fields_of[row]) for row, _ in live_texts if row in fields_of)
                self._with_live = (live, self._of_bundle.add([*live_texts, *names]))
            return self._with_live[1]

    def _by_uid(self, labels: Labels, text: str) -> Iterable[int]:
        rows = [*itertools.islice(self._labels.uids.beginning_with(text, self._labels.order), _MAX_UIDS)]
        live = itertools.islice(labels.rows.uids.live, len(labels.rows.vectors))
        rows += [row for row, uid in enumerate(live, labels.rows.bundle_rows) if uid.startswith(text)]
        found: list[int] = labels.present_positions(np.array(rows, dtype=np.int64)).tolist()
        return found


@dataclass(frozen=True)
class _Texts:
    """A search of texts and names, and the row of a label to which each belongs."""

    search: TextSearch
    rows: Int[np.ndarray, " text"]

    def add(self, texts: Sequence[tuple[int, str]]) -> _Texts:
        """A search that has these rows of labels with a text or a name, too."""
        if not texts:
            return self
        rows = np.array([row for row, _ in texts], dtype=np.int64)
        return _Texts(self.search.add([text for _, text in texts]), np.concatenate([self.rows, rows]))


def _names(fields: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The different names of labels, each after the row of its label. The fields of a label are given as JSON."""
    return [(row, name) for row, json in fields if json for name in names_of(from_json(json))]
