"""Fit the ranker's trees with LightGBM to examples, and export them; cross-fit them to judge and to calibrate."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import lightgbm
import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.core.reranker.model import RankerFile, RankerModel, Tree
from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.reranker.calibrate import HeldOut
from recollect.index_builder.reranker.examples import Examples
from recollect.index_builder.reranker.gains import best_candidates
from recollect.trainer.metrics import hits

# A logistic loss, because the trees' sum must be a logit. Small and regularised trees: with 31 leaves and no
# regularisation, nDCG@5 on library abstracts is 2.2 points lower, and lower than that of a logistic regression.
_PARAMETERS = {
    "objective": "binary",
    "lambda_l2": 20,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.6,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}
# Minimum number of examples in a leaf: one in 1,000 of all examples, but at least 20, and never more than 500.
_EXAMPLES_PER_LEAF, _MIN_IN_LEAF, _MAX_IN_LEAF = 1_000, 20, 500


class Shape(NamedTuple):
    """The number of trees, the number of their leaves, and the learning rate."""

    trees: int
    leaves: int
    rate: float


# The larger trees need more examples.
SHAPES = (Shape(100, 8, 0.1), Shape(200, 16, 0.05))


def fit_ranker(examples: Examples, shape: Shape, threads: int) -> RankerFile:
    """Fit trees whose sum is the logit that a candidate is true."""
    data = lightgbm.Dataset(examples.features, examples.true.astype(np.float32))
    in_leaf = min(max(len(examples.query) // _EXAMPLES_PER_LEAF, _MIN_IN_LEAF), _MAX_IN_LEAF)
    chosen = {"num_leaves": shape.leaves, "learning_rate": shape.rate, "min_data_in_leaf": in_leaf}
    booster = lightgbm.train(_PARAMETERS | chosen | {"num_threads": threads}, data, shape.trees)
    return RankerFile(
        format_version=1,
        features=list(examples.names),
        trees=[export_tree(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]],
    )


@dataclass(frozen=True)
class CrossFitted:
    """The candidates of held-out queries, with logits of trees that were fitted without the queries of their fold."""

    examples: Examples
    fold: Int[np.ndarray, " query"]
    shape: Shape
    logits: Float[np.ndarray, " candidate"]

    @classmethod
    def of(cls, examples: Examples, fold: Int[np.ndarray, " query"], shape: Shape, threads: int) -> CrossFitted:
        logits, fold_of = np.empty(len(examples.query)), fold[examples.query]
        for number in np.unique(fold):
            left_out = fold_of == number
            model = RankerModel(fit_ranker(examples[~left_out], shape, threads))
            logits[left_out] = model.logits(examples.features[left_out])
        return cls(examples, fold, shape, logits)

    @functools.cached_property
    def labels(self) -> Int[np.ndarray, "query 100"]:
        """The best labels of each query, best first; -1 pads short lists."""
        return pick(self.examples.label, self._best, -1)

    @functools.cached_property
    def counts(self) -> Int[np.ndarray, "query 100"]:
        """The number of training instances of each of these labels."""
        return pick(self.examples.training_counts, self._best, 0)

    def held_out(self, truth: sparse.csr_matrix) -> HeldOut:
        """The logits of the best labels, for the calibration."""
        return HeldOut(pick(self.logits, self._best, -np.inf), hits(self.labels, truth), np.diff(truth.indptr))

    @functools.cached_property
    def _best(self) -> Int[np.ndarray, "query 100"]:
        return best_candidates(self.examples.query, self.logits, len(self.fold))


def export_tree(root: dict[str, Any]) -> Tree:
    """Convert a tree of LightGBM's JSON."""
    columns: dict[str, list[Any]] = {name: [] for name in Tree.model_fields}

    def add(node: dict[str, Any]) -> tuple[int, float, int]:
        """Add a node and all nodes below it; return its number, the mean value and the number of its rows."""
        if "leaf_value" in node:
            columns["leaf"].append(node["leaf_value"])
            return ~(len(columns["leaf"]) - 1), node["leaf_value"], max(1, node.get("leaf_count", 1))
        split = len(columns["feature"])
        columns["feature"].append(node["split_feature"])
        columns["threshold"].append(node["threshold"])
        # Without missing values in the examples, LightGBM treats a missing value as 0.
        by_default = node["missing_type"] == "NaN"
        columns["missing_left"].append(node["default_left"] if by_default else node["threshold"] >= 0)
        for name in ("left", "right", "mean"):
            columns[name].append(0)
        left, left_mean, left_rows = add(node["left_child"])
        right, right_mean, right_rows = add(node["right_child"])
        rows = left_rows + right_rows
        mean = (left_mean * left_rows + right_mean * right_rows) / rows
        columns["left"][split], columns["right"][split], columns["mean"][split] = left, right, mean
        return split, mean, rows

    add(root)
    return Tree(**columns)
