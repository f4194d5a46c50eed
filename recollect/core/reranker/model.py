"""The ranker's model: the file `ranker.json`, and the logit of each candidate label.

The logit is the log-odds that the label is true: a sum of gradient-boosted regression trees over the features of the
candidate. `recollect/core/reranker/candidates.py` computes the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self, TypeVar

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recollect.core import kernels
from recollect.core.bundle.files import read_small
from recollect.core.errors import BundleError

FORMAT_VERSION = 1
_MOST_BYTES = 64 << 20
# Maximum number of leaves of a tree: `kernels.sum_trees` has a bit for each.
_MOST_LEAVES = 64
_EVERY_LEAF = (1 << _MOST_LEAVES) - 1


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
    leaf: list[float] = Field(min_length=1, max_length=_MOST_LEAVES)

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


_File = TypeVar("_File", bound=BaseModel)


class RankerFile(BaseModel):
    """The content of `ranker.json`: the features in the order of their columns, and trees, whose sum is the logit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: Literal[1]
    features: list[str] = Field(min_length=1)
    trees: list[Tree] = Field(min_length=1, max_length=2_000)

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        if len(set(self.features)) < len(self.features):
            raise ValueError("features: expected each name once")
        if any(feature >= len(self.features) for tree in self.trees for feature in tree.feature):
            raise ValueError("trees: a split compares a feature that does not exist")
        return self


def read_ranker_file(path: Path, kind: type[_File]) -> _File:
    """Read and check a file with the trees of a ranker.

    Raises:
        BundleError: If it is no file of this kind.
    """
    try:
        return kind.model_validate_json(read_small(path, _MOST_BYTES))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise wrong_ranker_file(path, f"{problem['msg']}{f' at {where}' if where else ''}") from None


def wrong_ranker_file(path: Path, found: str) -> BundleError:
    return BundleError(
        f"{path}: expected a ranker of format_version {FORMAT_VERSION}, found: {found}; fit it again with "
        "`recollect rank`, and build the bundle again"
    )


class RankerModel:
    """Computes logits of candidates, and the terms of these logits.

    Args:
        columns: Names of the columns of the features, which contain the features of the file; None: those of the file.
    """

    def __init__(self, file: RankerFile, columns: Sequence[str] | None = None) -> None:
        columns = columns or file.features
        self.features = file.features
        column_of = [columns.index(name) for name in file.features]
        splits, leaves, terms = list[_Split](), list[float](), list[np.ndarray]()
        first_splits, first_leaves = [0], []
        for tree in file.trees:  # the splits and the leaves of all trees follow each other
            first_leaves.append(len(leaves))
            _add_tree(tree, len(column_of), splits, leaves, terms)
            first_splits.append(len(splits))
        self._splits = (
            np.array(first_splits),
            np.array([column_of[split.feature] for split in splits], dtype=np.int32),
            _round_down(np.array([split.threshold for split in splits])),
            np.array([split.missing_left for split in splits], dtype=np.bool_),
            np.array([split.kept for split in splits], dtype=np.uint64),
            np.array(first_leaves),
        )
        self._leaves, self._terms = np.array([leaves]), np.zeros((len(columns) + 1, len(leaves)))
        self._terms[[*column_of, -1]] = np.array(terms).T

    @classmethod
    def open(cls, path: Path, columns: Sequence[str]) -> RankerModel:
        """Read and check `ranker.json`."""
        file = read_ranker_file(path, RankerFile)
        if unknown := sorted({*file.features} - {*columns}):
            raise BundleError(
                f"{path}: expected only features that this release computes, found {', '.join(unknown)}; "
                "fit the ranker again with `recollect rank`, and build the bundle again"
            )
        return cls(file, columns)

    def logits(self, features: Float[np.ndarray, "candidate feature"]) -> Float[np.ndarray, " candidate"]:
        """The log-odds of each candidate. NaN is a missing feature."""
        logits: np.ndarray = self._sum(features, self._leaves)[0]
        return logits

    def contributions(self, features: Float[np.ndarray, "candidate feature"]) -> Float[np.ndarray, "candidate term"]:
        """The terms of each logit: one for each feature, then the bias. They sum to the logit."""
        return self._sum(features, self._terms).T

    def _sum(
        self, features: Float[np.ndarray, "candidate feature"], leaves: Float[np.ndarray, "column leaf"]
    ) -> Float[np.ndarray, "column candidate"]:
        rows = np.ascontiguousarray(features, dtype=np.float32)
        sums: np.ndarray = kernels.sum_trees(rows, *self._splits, leaves)
        return sums


class _Split(NamedTuple):
    """A split, as `kernels.sum_trees` reads it."""

    feature: int
    threshold: float
    missing_left: bool
    kept: int


def _add_tree(
    tree: Tree, features: int, splits: list[_Split], leaves: list[float], terms: list[Float[np.ndarray, " term"]]
) -> None:
    """Add the splits of a tree, the values of its leaves from left to right, and the terms of these values.

    The terms are one for each feature, then the bias. The bias is the mean below the root. A split adds the difference
    between the mean below its chosen child and the mean below itself to the term of its feature (Saabas, 2014).
    """
    first = len(leaves)

    def add(node: int, own: Float[np.ndarray, " term"]) -> None:
        if node < 0:
            leaves.append(tree.leaf[~node])
            terms.append(own)
            return
        start = len(leaves) - first
        add_child(node, tree.left[node], own)
        excluded = (1 << len(leaves) - first) - (1 << start)
        split = tree.feature[node], tree.threshold[node], tree.missing_left[node]
        splits.append(_Split(*split, kept=_EVERY_LEAF & ~excluded))
        add_child(node, tree.right[node], own)

    def add_child(node: int, child: int, own: Float[np.ndarray, " term"]) -> None:
        term = own.copy()
        term[tree.feature[node]] += (tree.mean[child] if child >= 0 else tree.leaf[~child]) - tree.mean[node]
        add(child, term)

    bias = np.zeros(features + 1)
    bias[-1] = tree.mean[0] if tree.feature else tree.leaf[0]
    add(0 if tree.feature else ~0, bias)


def _round_down(values: Float[np.ndarray, " value"]) -> Float[np.ndarray, " value"]:
    """The greatest 32-bit numbers that are not greater: a 32-bit feature is at most both, or above both."""
    with np.errstate(over="ignore"):  # a number beyond 32 bits becomes infinite
        rounded = values.astype(np.float32)
    lower: np.ndarray = np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return lower
