"""Label search: finds the labels of a memory by the beginnings of their uids, and by their texts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.bundle import LabelTable
from recollect.core.tables.tables import Labels
from recollect.core.words.text_search import TextSearch

# Number of labels whose uids begin with a search text that are considered.
_MAX_UIDS = 1_000


class LabelSearch:
    """Finds labels of a bundle, and live labels; thread-safe.

    The first search builds the search of the texts. For each label, it takes about the length of its text and 40 bytes.

    Args:
        labels: The labels of the bundle.
    """

    def __init__(self, labels: LabelTable) -> None:
        self._labels, self._build = labels, threading.Lock()
        self._of_bundle: TextSearch | None = None
        self._with_live: tuple[int, TextSearch] | None = None

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
        groups = (self._positions(labels, rows) for rows in self._texts(labels).search(text))
        yield from itertools.islice(groups, 1)
        yield self._by_uid(labels, text)
        yield from groups

    def _texts(self, labels: Labels) -> TextSearch:
        """The search of the texts: those of the bundle, then all live texts."""
        live = len(labels.rows.vectors)
        with self._build:
            if self._of_bundle is None:
                self._of_bundle = TextSearch(self._labels.texts)
            if not live:
                return self._of_bundle
            if self._with_live is None or self._with_live[0] != live:
                self._with_live = (live, self._of_bundle.add(labels.rows.texts.live[:live]))
            return self._with_live[1]

    def _by_uid(self, labels: Labels, text: str) -> Iterable[int]:
        rows = [*itertools.islice(self._labels.uids.beginning_with(text, self._labels.order), _MAX_UIDS)]
        live = itertools.islice(labels.rows.uids.live, len(labels.rows.vectors))
        rows += [row for row, uid in enumerate(live, labels.rows.bundle_rows) if uid.startswith(text)]
        return self._positions(labels, np.array(rows, dtype=np.int64))

    def _positions(self, labels: Labels, rows: Int[np.ndarray, " row"]) -> Iterable[int]:
        """The positions of the labels to which some rows belong, without rows that were replaced or removed."""
        found: list[int] = labels.position_of(rows[~labels.rows.removed[rows]]).tolist()
        return found
