"""Corrections: a rejected label gets a lower score for queries that are near the query of the rejection.

    factor = 1 - exp(-|q - c|^2 / (2 tau))

q is the query, and c the query of the rejection. For unit vectors, |q - c|^2 / 2 = 1 - q c. The distance is exactly 0
for an equal vector, so the factor is, too. Of several corrections of a label, the smallest factor counts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from recollect.core.tables.rows import Rows


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


@dataclass(frozen=True, eq=False)
class Corrections:
    """The corrections of a snapshot.

    Attributes:
        rows: The corrections; their numbers are positions of labels.
    """

    rows: Rows

    @functools.cached_property
    def _by_label(self) -> tuple[Int[np.ndarray, " correction"], Int[np.ndarray, " correction"]]:
        """The labels of the present corrections in rising order, and the corrections."""
        present = np.flatnonzero(~self.rows.removed)
        order = present[np.argsort(self.rows.numbers[present], kind="stable")]
        return self.rows.numbers[order], order

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
        labels, corrections = self._by_label
        starts, ends = labels.searchsorted(label), labels.searchsorted(label, side="right")
        places = np.flatnonzero(starts < ends)
        rows, factors = np.empty(len(places), dtype=np.int64), np.empty(len(places))
        for nth, place in enumerate(places.tolist()):
            own = corrections[starts[place] : ends[place]]
            difference = self.rows.vectors[own].astype(np.float64) - vectors[query[place]]
            distance = np.einsum("cd,cd->c", difference, difference)
            nearest = int(distance.argmin())
            rows[nth], factors[nth] = own[nearest], -np.expm1(-distance[nearest] / (2 * temperature))
        return Corrected(places, rows, factors)
