"""Fit the ranker's trees with LightGBM to examples: the candidates that a memory without their whole fold finds.

A memory that lacks only the query itself would reveal the labels of the query: each of them has one instance fewer than
it has for all other queries. A memory that lacks the whole fold treats true and other labels alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.index_builder.ranking.candidate_source import Block, CandidateSource
from recollect.service.console import progress_bar
from recollect.service.ranking.model import RankerFile, RankerModel, Tree
from recollect.trainer.memory.memory import Memory

# A logistic loss, because the trees' sum must be a logit. Small and regularised trees: with 31 leaves and no
# regularisation, nDCG@5 on library abstracts is 2.2 points lower, and lower than that of a logistic regression.
_PARAMETERS = {
    "objective": "binary",
    "learning_rate": 0.1,
    "num_leaves": 8,
    "lambda_l2": 20,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.6,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}
_TREES = 100
# Minimum number of examples in a leaf: one in 1,000 of all examples, but at least 20, and never more than 500.
_EXAMPLES_PER_LEAF, _LEAST_IN_LEAF, _MOST_IN_LEAF = 1_000, 20, 500
# The fields of `Examples` with a row for each candidate.
_COLUMNS = ("query", "label", "score", "features", "true")


@dataclass(frozen=True)
class Examples:
    """The candidates of some queries: all of them are examples, not only the labels with the most votes.

    Attributes:
        query: The number of each candidate's query, in rising order.
        label: The label of each candidate.
        score: The votes for each candidate.
        features: The features of each candidate, in the order of `names`.
        names: Names of the features.
        true: Whether each candidate is a true label of its query.
    """

    query: Int[np.ndarray, " candidate"]
    label: Int[np.ndarray, " candidate"]
    score: Float[np.ndarray, " candidate"]
    features: Float[np.ndarray, "candidate feature"]
    names: tuple[str, ...]
    true: Bool[np.ndarray, " candidate"]

    def __getitem__(self, candidates: Bool[np.ndarray, " candidate"] | Int[np.ndarray, " chosen"]) -> Examples:
        """Some of the candidates, in the given order."""
        return dataclasses.replace(self, **{name: getattr(self, name)[candidates] for name in _COLUMNS})

    @classmethod
    def join(cls, parts: Sequence[Examples]) -> Examples:
        """Join examples of the same features."""
        joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        return dataclasses.replace(parts[0], **joined)


class ExampleSource:
    """Computes examples from a memory.

    Args:
        memory: The memory.
        with_words: Whether the features of a lexical index are computed.
    """

    def __init__(self, memory: Memory, with_words: bool) -> None:
        self._memory, self._source = memory, CandidateSource(memory, with_words)
        self._truth = memory.relevance
        self._filtered = memory.filtered_labels.to_csr(memory.plan.labels)  # labels that are removed from answers

    def cross(self, rows: Int[np.ndarray, " query"], fold: Int[np.ndarray, " query"]) -> Examples:
        """Compute the examples of instances, each from a memory without all instances of its fold.

        Args:
            rows: The instances, in rising order.
            fold: The fold of each of these instances.
        """
        parts = []
        with progress_bar(len(rows), "query", "features") as bar:
            for number in np.unique(fold):
                queries = np.flatnonzero(fold == number)
                absent = rows[queries]
                vectors = self._memory.queries(absent)
                texts = [self._source.texts[row] for row in absent.tolist()]
                for block in self._source.find(texts, vectors, absent):
                    numbers = queries[block.first : block.first + block.queries]
                    parts.append(self._examples(block, numbers, rows[numbers]))
                    bar.update(block.queries)
        joined = Examples.join(parts)
        return joined[np.argsort(joined.query, kind="stable")]

    def _examples(self, block: Block, numbers: Int[np.ndarray, " query"], rows: Int[np.ndarray, " query"]) -> Examples:
        """The examples of a block, whose queries have these numbers and these rows."""
        candidates = block.candidates
        pairs = candidates.query, candidates.label
        examples = Examples(
            query=numbers[candidates.query],
            label=candidates.label,
            score=candidates.features[:, 0].astype(np.float64),
            features=candidates.features[:, : len(self._source.features)],
            names=self._source.features,
            true=np.asarray(self._truth[rows][pairs]).ravel() > 0,
        )
        return examples[np.asarray(self._filtered[rows][pairs]).ravel() == 0]


def fit_ranker(examples: Examples, threads: int) -> RankerFile:
    """Fit trees whose sum is the logit that a candidate is true."""
    data = lightgbm.Dataset(examples.features, examples.true.astype(np.float32))
    in_leaf = min(max(len(examples.query) // _EXAMPLES_PER_LEAF, _LEAST_IN_LEAF), _MOST_IN_LEAF)
    booster = lightgbm.train(_PARAMETERS | {"min_data_in_leaf": in_leaf, "num_threads": threads}, data, _TREES)
    return RankerFile(
        format_version=1,
        features=list(examples.names),
        trees=[export_tree(each["tree_structure"]) for each in booster.dump_model()["tree_info"]],
    )


def cross_fitted_logits(
    examples: Examples, fold: Int[np.ndarray, " query"], threads: int
) -> Float[np.ndarray, " candidate"]:
    """The logit of each candidate from trees that were fitted without all queries of its fold."""
    logits, fold_of = np.empty(len(examples.query)), fold[examples.query]
    for number in np.unique(fold):
        left_out = fold_of == number
        logits[left_out] = RankerModel(fit_ranker(examples[~left_out], threads)).logits(examples.features[left_out])
    return logits


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
