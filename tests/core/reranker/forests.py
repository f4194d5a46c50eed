"""Random regression trees for tests, and their plain evaluation."""

from __future__ import annotations

import numpy as np

from recollect.core.reranker.model import RankerFile, Tree


def random_tree(rng: np.random.Generator, features: int, leaves: int) -> Tree:
    """A tree that is grown by splitting a random leaf, until it has `leaves` leaves."""
    left, right, slots = [], [], [(-1, "")]
    for split in range(leaves - 1):
        parent, side = slots.pop(int(rng.integers(len(slots))))
        if parent >= 0:
            (left if side == "left" else right)[parent] = split
        left.append(0)
        right.append(0)
        slots += [(split, "left"), (split, "right")]
    for leaf, (parent, side) in enumerate(slots):
        if parent >= 0:
            (left if side == "left" else right)[parent] = ~leaf
    splits = leaves - 1
    return Tree(
        feature=rng.integers(features, size=splits).tolist(),
        threshold=rng.integers(-2, 3, size=splits).astype(float).tolist(),  # few values, so that many are equal
        missing_left=rng.integers(2, size=splits).astype(bool).tolist(),
        left=left,
        right=right,
        mean=rng.normal(size=splits).tolist(),
        leaf=rng.normal(size=leaves).tolist(),
    )


def random_file(rng: np.random.Generator, names: list[str], trees: int = 20, most_leaves: int = 64) -> RankerFile:
    sizes = rng.integers(1, most_leaves + 1, size=trees).tolist()
    return RankerFile(
        format_version=1, features=names, trees=[random_tree(rng, len(names), leaves) for leaves in sizes]
    )


def walk(tree: Tree, row: np.ndarray) -> float:
    """The value of one row: from the root to a leaf, split by split."""
    node = 0 if tree.feature else ~0
    while node >= 0:
        value = row[tree.feature[node]]
        goes_left = tree.missing_left[node] if np.isnan(value) else value <= tree.threshold[node]
        node = tree.left[node] if goes_left else tree.right[node]
    return tree.leaf[~node]
