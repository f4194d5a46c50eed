"""Corrections: a rejected label gets a lower score for queries that are near the query of the rejection.

    factor = 1 - exp(-|q - c|^2 / (2 tau))

q is the query, and c the query of the rejection. For unit vectors, |q - c|^2 / 2 = 1 - q c. The distance is exactly 0
for an equal vector, so the factor is, too. Of several corrections of a label, the smallest factor counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.service.memory.live_table import LiveRows


class Corrected(NamedTuple):
    """The labels of some queries whose scores corrections lower.

    Attributes:
        place: The place of each pair of a query and a label among those that were given.
        row: The correction that counts.
        factor: The factor of the score.
    """

    place: Int[np.ndarray, " pair"]
    row: Int[np.ndarray, " pair"]
    factor: Float[np.ndarray, " pair"]


class Corrections:
    """The corrections of one view.

    Args:
        rows: The corrections; their numbers are positions of labels.
        by_label: At least the corrections of each label, in order of their rows.
        has_any: Whether a label has corrections, or had some.
    """

    def __init__(self, rows: LiveRows, by_label: dict[int, list[int]], has_any: Bool[np.ndarray, " label"]) -> None:
        self.rows, self._by_label, self._has_any = rows, by_label, has_any

    def find(
        self,
        vectors: Float[np.ndarray, "query dim"],
        query: Int[np.ndarray, " pair"],
        label: Int[np.ndarray, " pair"],
        temperature: float,
    ) -> Corrected:
        """The factors of the labels that have corrections.

        Args:
            vectors: The queries.
            query: The query of each pair.
            label: The label of each pair, by its position.
            temperature: Tau.
        """
        places, rows, factors = [], [], []
        for place in np.flatnonzero(self._has_any[label]).tolist():
            own = np.array(self._by_label[int(label[place])])
            own = own[: own.searchsorted(self.rows.count)]
            own = own[self.rows.ends.present(own)]
            if not len(own):
                continue
            difference = self.rows.vectors[own].astype(np.float64) - vectors[query[place]]
            distance = np.einsum("cd,cd->c", difference, difference)
            nearest = int(distance.argmin())
            places.append(place)
            rows.append(own[nearest])
            factors.append(-np.expm1(-distance[nearest] / (2 * temperature)))
        return Corrected(np.array(places, dtype=np.int64), np.array(rows, dtype=np.int64), np.array(factors))
