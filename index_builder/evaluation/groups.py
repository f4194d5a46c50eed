"""Quality by the values of a field of labels, for example by group: which parts of a vocabulary are answered well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from scipy import sparse

from recollect.core.bundle.label_fields import Value
from recollect.core.predictor import Predictor
from recollect.index_builder.errors import BuildError

# Number of values that are measured, the most frequent ones.
_MOST_VALUES = 50
# Number of answered labels whose precision is measured, and numbers of those whose recall is.
_FIRST, _DEPTHS = 5, (5, 10, 100)


@dataclass(frozen=True, eq=False)
class FieldGroups:
    """The labels of a version, by the values of a field. A label with several values is in several groups.

    Attributes:
        values: All values of the field.
        members: Whether each label has each value.
    """

    field: str
    values: list[Value]
    members: sparse.csr_array

    @classmethod
    def of(cls, predictor: Predictor, field: str, labels: int) -> FieldGroups:
        """Read the values of a field.

        Args:
            labels: Number of labels of the ground truth. Labels that the bundle lacks have no values.

        Raises:
            BuildError: If no label has a value of the field. The message names the fields that exist.
        """
        known = predictor.memory.labels
        found = [*known.values_of(field)]
        if not found:
            fields = ", ".join(sorted(known.valued_fields())) or "none"
            raise BuildError(f"--by: expected a field of the labels of {predictor.version} ({fields}), found {field!r}")
        sizes = [len(positions) for _, positions in found]
        rows, columns = np.concatenate([positions for _, positions in found]), np.repeat(np.arange(len(found)), sizes)
        members = sparse.csr_array((np.ones(len(rows), np.int64), (rows, columns)), shape=(labels, len(found)))
        return cls(field, [value for value, _ in found], members)

    def measure(
        self, predictions: Int[np.ndarray, "query 100"], hit: Bool[np.ndarray, "query 100"], truth: sparse.csr_matrix
    ) -> list[dict[str, Any]]:
        """Measure the most frequent values. The predictions are best first; -1 pads short lists.

        Returns:
            For each value, those in most test texts first: the number of its `labels`; `texts`, the test texts with a
            true label among them; `true`, the pairs of such a text and label. `precision@5` is the share of true
            labels among the labels of the group in the first five answers to all texts; None if there are none.
            `R@k` is the share of `true` that the first k answers contain. All shares are in percent.
        """

        def counted(labels: Int[np.ndarray, " found"]) -> Int[np.ndarray, " value"]:
            return np.asarray(np.bincount(labels, minlength=self.members.shape[0]) @ self.members)

        texts = (sparse.csr_array(truth, dtype=np.int64) @ self.members).count_nonzero(axis=0)
        labels, true = self.members.sum(axis=0), counted(truth.indices)
        first = predictions[:, :_FIRST]
        predicted = counted(first[first >= 0])
        found = {k: counted(predictions[:, :k][hit[:, :k]]) for k in _DEPTHS}
        order = np.lexsort((-labels, -texts))[:_MOST_VALUES]
        return [
            {
                "value": self.values[place],
                "labels": int(labels[place]),
                "texts": int(texts[place]),
                "true": int(true[place]),
                f"precision@{_FIRST}": _percent(found[_FIRST][place], predicted[place]),
                **{f"R@{k}": _percent(found[k][place], true[place]) for k in _DEPTHS},
            }
            for place in order.tolist()
        ]


def _percent(part: int, whole: int) -> float | None:
    return float(100 * part / whole) if whole else None
