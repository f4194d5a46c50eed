"""Exported trees against LightGBM's own predictions."""

from __future__ import annotations

import lightgbm
import numpy as np
import pytest

from recollect.core.reranker.model import RankerFile, RankerModel
from recollect.index_builder.reranker.fit import SHAPES, CrossFitted, Examples, export_tree, fit_ranker

NAMES = ("a", "b", "c", "d")


def random_examples(seed: int, missing: float, queries: int = 40, candidates: int = 50) -> Examples:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(queries * candidates, len(NAMES))).astype(np.float32)
    true = features[:, 0] * features[:, 1] + features[:, 2] > 1
    features[rng.random(features.shape) < missing] = np.nan
    query = np.repeat(np.arange(queries), candidates)
    return Examples(query, query, features[:, 0].astype(float), features, NAMES, true)


@pytest.mark.parametrize("missing", [0, 0.2])
def test_exported_trees_predict_what_lightgbm_predicts(missing: float) -> None:
    examples = random_examples(0, missing)
    data = lightgbm.Dataset(examples.features, examples.true.astype(np.float32))
    booster = lightgbm.train({"objective": "binary", "num_leaves": 15, "verbose": -1, "num_threads": 1}, data, 20)
    trees = [export_tree(each["tree_structure"]) for each in booster.dump_model()["tree_info"]]
    model = RankerModel(RankerFile(format_version=1, features=list(NAMES), trees=trees))
    rows = random_examples(1, 0.3).features  # missing values also where LightGBM saw none
    np.testing.assert_allclose(model.logits(rows), booster.predict(rows, raw_score=True), atol=1e-6)
    np.testing.assert_allclose(model.contributions(rows).sum(axis=1), model.logits(rows), atol=1e-9)


def test_cross_fitted_logits_do_not_depend_on_the_answers_of_their_own_fold() -> None:
    examples, fold = random_examples(0, 0), np.arange(40) % 3
    before = CrossFitted.of(examples, fold, SHAPES[0], threads=1).logits
    own = fold[examples.query] == 1
    changed = Examples(**(vars(examples) | {"true": np.where(own, ~examples.true, examples.true)}))
    after = CrossFitted.of(changed, fold, SHAPES[0], threads=1).logits
    np.testing.assert_array_equal(before[own], after[own])
    assert (before[~own] != after[~own]).any()


def test_all_true_or_all_false_candidates_give_a_constant_logit() -> None:
    examples = random_examples(0, 0)
    none = Examples(**(vars(examples) | {"true": np.zeros(len(examples.query), dtype=bool)}))
    logits = RankerModel(fit_ranker(none, SHAPES[0], threads=1)).logits(examples.features)
    assert np.ptp(logits) == 0
