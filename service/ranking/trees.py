"""Gradient-boosted regression trees: their stored form, and their fast evaluation with numpy.

The evaluation is QuickScorer (Lucchese et al., SIGIR 2015). Each leaf of a tree is one bit, from left to right. A split
whose condition is false excludes the leaves below its left child. The leaf of a row is then the leftmost leaf that no
split excludes. A table holds the leaves that remain in every tree, for each feature and each interval between two
thresholds. So a row needs one lookup for each feature, and no loop over the levels of a tree.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np
from jaxtyping import Float, Int, UInt
from pydantic import BaseModel, ConfigDict, Field, model_validator

# One bit of an integer for each leaf.
MOST_LEAVES = 64
# Bits of the mantissa of a float64, and the bias of its exponent.
_MANTISSA_BITS, _EXPONENT_BIAS = 52, 1023


class Tree(BaseModel):
    """One regression tree. Split 0 is the root; a split comes before its children.

    Attributes:
        feature: The feature that each split compares.
        threshold: A row whose feature is at most this threshold goes to the left child.
        missing_left: Whether a row without this feature (NaN) goes to the left child.
        left: The left child of each split: the number of a split, or ~n for leaf n.
        right: The right child of each split.
        mean: Mean value of the training rows below each split.
        leaf: The value of each leaf.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    feature: list[Annotated[int, Field(ge=0)]]
    threshold: list[float]
    missing_left: list[bool]
    left: list[int]
    right: list[int]
    mean: list[float]
    leaf: list[float] = Field(min_length=1, max_length=MOST_LEAVES)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        splits, leaves = len(self.feature), len(self.leaf)
        columns = (self.threshold, self.missing_left, self.left, self.right, self.mean)
        if leaves != splits + 1 or any(len(column) != splits for column in columns):
            raise ValueError("a tree has one leaf more than splits, and one value of each kind for each split")
        nodes = [*range(-leaves, 0), *range(1, splits)] if splits else []  # all nodes except the root
        if sorted([*self.left, *self.right]) != nodes:
            raise ValueError("each split except the root, and each leaf, is the child of one split")
        if any(0 <= child <= split for side in (self.left, self.right) for split, child in enumerate(side)):
            raise ValueError("a split comes before its children")
        return self


class _Split(NamedTuple):
    """A split of tree number `tree`, and the leaves that remain if its condition is false."""

    threshold: float
    missing_left: bool
    tree: int
    remaining: int


class Trees:
    """Evaluates a sum of trees for many rows at once.

    Args:
        trees: The trees; the value of a row is the sum of the values of its leaves.
        features: Number of features of a row.
    """

    def __init__(self, trees: list[Tree], features: int) -> None:
        leaves = max(len(tree.leaf) for tree in trees)
        all_leaves = _bits(0, leaves)
        self._leaf_values = np.zeros((len(trees), leaves))
        self._leaf_terms = np.zeros((len(trees), leaves, features))
        self._first_leaves = leaves * np.arange(len(trees))
        self.bias = 0.0
        excluded: list[list[_Split]] = [[] for _ in range(features)]
        for number, tree in enumerate(trees):
            starts, stops = _leaf_ranges(tree)
            for split, feature in enumerate(tree.feature):
                left = tree.left[split]
                remaining = all_leaves & ~_bits(starts[left], stops[left])
                excluded[feature].append(_Split(tree.threshold[split], tree.missing_left[split], number, remaining))
            self._add_leaves(number, tree, starts)
        # A missing feature (NaN) sorts after infinity, so a search finds its row of the table without a special case.
        self._thresholds = [np.unique([*(split.threshold for split in splits), np.inf]) for splits in excluded]
        nothing = np.full(len(trees), all_leaves, dtype=np.min_scalar_type(all_leaves))
        self._tables = [_table(*each, nothing) for each in zip(excluded, self._thresholds, strict=True)]
        self._nothing_excluded = nothing

    def values(self, rows: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, " row"]:
        """The value of each row. NaN is a missing feature."""
        values: np.ndarray = self._leaf_values.take(self._leaves(rows) + self._first_leaves).sum(axis=1)
        return values

    def terms(self, rows: Float[np.ndarray, "row feature"]) -> Float[np.ndarray, "row feature"]:
        """The share of each feature in the value of each row; with `bias` added, the shares sum to the value.

        A split adds the difference between the mean value below its chosen child and the mean value below itself to the
        share of its feature (Saabas, 2014).
        """
        leaves, terms = self._leaves(rows), np.zeros(rows.shape)
        for tree, leaf_terms in enumerate(self._leaf_terms):
            terms += leaf_terms[leaves[:, tree]]
        return terms

    def _leaves(self, rows: Float[np.ndarray, "row feature"]) -> Int[np.ndarray, "row tree"]:
        """The leaf of each row in each tree, numbered from left to right."""
        remaining = np.tile(self._nothing_excluded, (len(rows), 1))
        looked_up = np.empty_like(remaining)  # reused, because new memory for each feature would double the time
        for feature, (thresholds, table) in enumerate(zip(self._thresholds, self._tables, strict=True)):
            if len(thresholds) > 1:
                below = np.searchsorted(thresholds, rows[:, feature])  # splits with thresholds below are false
                remaining &= table.take(below, axis=0, out=looked_up, mode="clip")
        lowest = remaining & (~remaining + remaining.dtype.type(1))
        exponents: np.ndarray = lowest.astype(np.float64).view(np.int64) >> _MANTISSA_BITS
        exponents -= _EXPONENT_BIAS
        return exponents

    def _add_leaves(self, number: int, tree: Tree, starts: dict[int, int]) -> None:
        """Store the value of each leaf, and the share of each feature in it."""
        means = dict(enumerate(tree.mean)) | {~n: each for n, each in enumerate(tree.leaf)}
        terms = {0 if tree.feature else ~0: np.zeros(self._leaf_terms.shape[2])}
        for split, feature in enumerate(tree.feature):
            for child in (tree.left[split], tree.right[split]):
                terms[child] = terms[split].copy()
                terms[child][feature] += means[child] - means[split]
        for n, value in enumerate(tree.leaf):
            self._leaf_values[number, starts[~n]] = value
            self._leaf_terms[number, starts[~n]] = terms[~n]
        self.bias += tree.mean[0] if tree.feature else tree.leaf[0]


def _leaf_ranges(tree: Tree) -> tuple[dict[int, int], dict[int, int]]:
    """For each split and each leaf ~n: the first leaf below it and the leaf after its last one, from left to right."""
    counts = {~n: 1 for n in range(len(tree.leaf))}
    for split in reversed(range(len(tree.feature))):
        counts[split] = counts[tree.left[split]] + counts[tree.right[split]]
    starts = {0 if tree.feature else ~0: 0}
    for split in range(len(tree.feature)):
        starts[tree.left[split]] = starts[split]
        starts[tree.right[split]] = starts[split] + counts[tree.left[split]]
    return starts, {node: start + counts[node] for node, start in starts.items()}


def _bits(start: int, stop: int) -> int:
    return (1 << stop) - (1 << start)


def _table(
    splits: list[_Split], thresholds: Float[np.ndarray, " threshold"], nothing_excluded: UInt[np.ndarray, " tree"]
) -> UInt[np.ndarray, "interval tree"]:
    """The remaining leaves of every tree for each interval of one feature; the last row is for a missing feature.

    Args:
        splits: The splits that compare the feature.
        thresholds: Their distinct thresholds, in rising order, then infinity.
        nothing_excluded: All leaves of every tree.
    """
    table = np.tile(nothing_excluded, (len(thresholds) + 1, 1))
    for split in splits:
        table[np.searchsorted(thresholds, split.threshold) + 1, split.tree] &= split.remaining
        if not split.missing_left:
            table[-1, split.tree] &= split.remaining
    table[:-1] = np.bitwise_and.accumulate(table[:-1], axis=0)
    return table
