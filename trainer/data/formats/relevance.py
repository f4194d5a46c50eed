"""The true labels of texts, from relevance values: a true label has a value above 0, in every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy import sparse

from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.split import LabelSets
from recollect.trainer.errors import DatasetError


def true_labels(relevance: sparse.csr_matrix, path: Path, rule: TextRule) -> LabelSets:
    """The label sets of the values above 0. The number of other values is reported.

    Args:
        relevance: Finite values with the axes (text, label). Values of the same pair are added.
    """
    relevance.sum_duplicates()
    is_true = relevance.data > 0
    if others := int((~is_true).sum()):
        rule.note(
            f"{path}: {others:,} of {len(is_true):,} relevance values are 0 or less; these labels are not true labels"
        )
    relevance.data = is_true
    relevance.eliminate_zeros()
    return LabelSets.of(relevance)


def check_finite(values: Float[np.ndarray, " value"], describe: Callable[[int], str]) -> None:
    """Check that relevance values are finite.

    Args:
        describe: Describes the place of a value, given its number from 0.

    Raises:
        DatasetError: If a value is infinite or NaN.
    """
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        first = int(wrong[0])
        raise DatasetError(f"{describe(first)}: expected a finite relevance, found {values[first]}; correct the value")
