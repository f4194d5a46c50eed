"""The ranker's model: the file `ranker.json`, and the logit of each candidate label.

The logit is the log-odds that the label is true: a sum of gradient-boosted regression trees over the features of the
candidate. `service/ranking/candidates.py` computes the features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recollect.service import loops
from recollect.service.bundle.files import read_small
from recollect.service.errors import BundleError

FORMAT_VERSION = 1
_MOST_BYTES = 64 << 20
# Types of the arrays of all trees together.
_TYPES = {
    "root": np.int32,
    "feature": np.int32,
    "threshold": np.float64,
    "missing_left": np.bool_,
    "left": np.int32,
    "right": np.int32,
    "mean": np.float64,
    "leaf": np.float64,
}


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
    leaf: list[float] = Field(min_length=1)

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


class RankerFile(BaseModel):
    """The content of `ranker.json`.

    Attributes:
        features: Names of the features, in the order of their columns.
        trees: The trees, whose sum is the logit.
    """

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


class RankerModel:
    """Computes logits of candidates, and the terms of these logits.

    Attributes:
        features: Names of the features, in the order of their columns.
        bias: The part of every logit that no feature explains.
    """

    def __init__(self, file: RankerFile) -> None:
        self.features = tuple(file.features)
        columns: dict[str, list[Any]] = {name: [] for name in Tree.model_fields}
        roots = []
        for tree in file.trees:  # the splits and the leaves of all trees follow each other
            splits, leaves = len(columns["feature"]), len(columns["leaf"])
            roots.append(splits if tree.feature else ~leaves)
            for name, column in columns.items():
                if name in ("left", "right"):
                    column += [child + splits if child >= 0 else child - leaves for child in getattr(tree, name)]
                else:
                    column += getattr(tree, name)
        self._trees: Any = [np.array(column, dtype=_TYPES[name]) for name, column in {"root": roots, **columns}.items()]
        self.bias = float(sum(tree.mean[0] if tree.feature else tree.leaf[0] for tree in file.trees))

    @classmethod
    def open(cls, path: Path) -> RankerModel:
        """Read and check `ranker.json`.

        Raises:
            BundleError: If the file is missing or not a ranker.
        """
        try:
            return cls(RankerFile.model_validate_json(read_small(path, _MOST_BYTES)))
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise BundleError(
                f"{path}: expected a ranker of format_version {FORMAT_VERSION}, found: {problem['msg']}"
                f"{f' at {where}' if where else ''}; fit it again with `recollect rank`, and build the bundle again"
            ) from None

    def logits(self, features: Float[np.ndarray, "candidate feature"]) -> Float[np.ndarray, " candidate"]:
        """The log-odds of each candidate. NaN is a missing feature."""
        return self._walk(features, np.empty((0, 0)))

    def contributions(self, features: Float[np.ndarray, "candidate feature"]) -> Float[np.ndarray, "candidate term"]:
        """The terms of each logit: one for each feature, then the bias. They sum to the logit."""
        terms = np.zeros(features.shape)
        self._walk(features, terms)
        return np.concatenate([terms, np.full((len(terms), 1), self.bias)], axis=1)

    def _walk(
        self, features: Float[np.ndarray, "candidate feature"], terms: Float[np.ndarray, "candidate feature"]
    ) -> Float[np.ndarray, " candidate"]:
        walk: Any = loops.walk_trees  # mypy does not count the arrays of the trees
        logits: np.ndarray = walk(np.ascontiguousarray(features, dtype=np.float32), *self._trees, terms)
        return logits
