"""Count the labels that occur together; `recollect/core/reranker/cooccurrence.py` reads the result."""

from __future__ import annotations

import numpy as np

from recollect.core.reranker.cooccurrence import WHOLE, Cooccurrence
from recollect.trainer.data.split import LabelSets

# Number of labels in a row: those with the largest shares.
_ROW_LABELS = 50
# Number of labels whose rows are counted together.
_BLOCK_LABELS = 1_024


def count_cooccurrence(label_sets: LabelSets, labels: int) -> Cooccurrence:
    """The rows of all labels, from the labels of instances."""
    relevance = label_sets.to_csr(labels)
    voters = relevance.T.tocsr()
    totals = np.diff(voters.indptr)
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for first in range(0, labels, _BLOCK_LABELS):
        together = (voters[first : first + _BLOCK_LABELS] @ relevance).tocoo()
        label = together.row + first
        kept = label != together.col
        label, other, count = label[kept], together.col[kept], together.data[kept]
        order = np.lexsort((other, -count, label))
        label, other, count = label[order], other[order], count[order]
        starts = np.searchsorted(label, label)  # the place of the first label of each row
        best = np.arange(len(label)) - starts < _ROW_LABELS
        parts.append((label[best], other[best], np.rint(WHOLE * count[best] / totals[label[best]])))
    label, other, share = (np.concatenate(part) for part in zip(*parts, strict=True))
    offsets = np.cumsum(np.append(0, np.bincount(label, minlength=labels)))
    return Cooccurrence(offsets, other.astype(np.int32), share.astype(np.uint16))
