"""Label search: finds the labels of a memory by the beginnings of their uids, and by their texts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Bool, Int

from recollect.service.bundle.bundle import LabelTable
from recollect.service.lexical.text_search import TextSearch
from recollect.service.memory.layers import Labels, LiveLabels

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
        self._mapped: TextSearch | None = None
        self._with_live: tuple[int, TextSearch] | None = None

    def find(self, labels: Labels, text: str, limit: int) -> list[int]:
        """The positions of at most `limit` labels, the best label first.

        The order: the label with the uid `text`; texts that begin with `text`; uids that begin with it; texts with a
        word that begins with it; other texts that contain it; similar texts.

        Args:
            labels: The present labels of the memory: those of the bundle, or of a view.
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
        live = labels.live.count if isinstance(labels, LiveLabels) else 0
        with self._build:
            if self._mapped is None:
                self._mapped = TextSearch(self._labels.texts)
            if not isinstance(labels, LiveLabels) or not live:
                return self._mapped
            if self._with_live is None or self._with_live[0] != live:
                self._with_live = (live, self._mapped.add(labels.live.texts[:live]))
            return self._with_live[1]

    def _by_uid(self, labels: Labels, text: str) -> Iterable[int]:
        mapped = [*itertools.islice(self._labels.uids.beginning_with(text, self._labels.order), _MAX_UIDS)]
        if not isinstance(labels, LiveLabels):
            return mapped
        uids = itertools.islice(labels.live.uids, labels.live.count)
        live = np.array([row for row, uid in enumerate(uids) if uid.startswith(text)], dtype=np.int64)
        positions = np.concatenate([np.array(mapped, dtype=np.int64), labels.live.numbers[live]])
        found: list[int] = positions[labels.ends.present(positions)].tolist()
        return found

    def _positions(self, labels: Labels, rows: Int[np.ndarray, " row"]) -> Iterable[int]:
        """The positions of the labels that have the texts in some rows, without texts that were replaced or removed."""
        if not isinstance(labels, LiveLabels):
            return map(int, rows)
        is_live = rows >= len(self._labels)
        live, present = rows[is_live] - len(self._labels), self._are_present(labels, rows, is_live)
        positions = rows.copy()
        positions[is_live] = labels.live.numbers[live]
        return map(int, positions[present])

    def _are_present(
        self, labels: LiveLabels, rows: Int[np.ndarray, " row"], is_live: Bool[np.ndarray, " row"]
    ) -> Bool[np.ndarray, " row"]:
        present, mapped = np.empty(len(rows), dtype=bool), rows[~is_live]
        present[is_live] = labels.live.ends.present(rows[is_live] - len(self._labels))
        present[~is_live] = labels.ends.present(mapped) & (labels.rows[mapped] < 0)
        return present
