"""Deciles of label frequency: their metrics against loops over pairs, and in `recollect evaluate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from recollect.core.bundle.values import Matrix, Values
from recollect.core.scoring import WeightedKeys
from recollect.index_builder.evaluation.deciles import (
    by_frequency,
    count_sources,
    deciles_of_labels,
    deciles_of_pairs,
)
from recollect.index_builder.evaluation.evaluate import evaluate
from recollect.index_builder.settings import EvaluateSettings
from recollect.trainer.metrics import hits

QUERIES, LABELS, INSTANCES = 12, 37, 50


def test_deciles_have_equal_size_and_rise_with_label_frequency() -> None:
    counts = np.random.default_rng(0).integers(0, 30, LABELS)
    deciles = deciles_of_labels(counts)
    sizes = np.bincount(deciles)
    assert len(sizes) == 10
    assert set(sizes) == {3, 4}
    for number in range(9):
        assert counts[deciles == number].max() <= counts[deciles == number + 1].min()


def test_deciles_of_pairs_hold_a_tenth_of_the_training_pairs_each_from_the_head_to_the_tail() -> None:
    counts = np.array([1, 50, 9, 0, 40], dtype=np.uint32)  # 100 pairs: the label with 50 of them fills 5 deciles
    assert deciles_of_pairs(counts).tolist() == [9, 0, 9, 9, 5]
    counts = np.repeat(np.array([10, 1], dtype=np.uint32), [10, 100])
    deciles = deciles_of_pairs(counts)
    assert np.bincount(deciles, weights=counts).tolist() == [20] * 10
    assert np.bincount(deciles).tolist() == [2] * 5 + [20] * 5
    assert deciles_of_pairs(np.zeros(3, np.uint32)).tolist() == [0, 0, 0]


def test_metrics_of_each_decile_equal_loops_over_pairs() -> None:
    random = np.random.default_rng(1)
    truth = random.random((QUERIES, LABELS)) < 0.1
    truth[:, 7] = False
    counts = random.integers(0, 30, LABELS)
    counts[7] = 1_000  # the most frequent label is never true
    predictions = np.argsort(random.random((QUERIES, LABELS)), axis=1)
    predictions[0, 4:] = -1
    # Each key of an instance votes for two labels.
    labels = np.stack([random.permutation(LABELS)[:2] for _ in range(INSTANCES)]).astype(np.int32)
    values = Values(Matrix(np.arange(0, 2 * INSTANCES + 1, 2), labels.ravel()), LABELS)
    keys = np.stack([random.permutation(INSTANCES + LABELS)[:30] for _ in range(QUERIES)])
    weighted = WeightedKeys(keys, np.full(keys.shape, 1 / 30))
    deciles, relevance = deciles_of_labels(counts), sparse.csr_matrix(truth)
    (sources,) = count_sources(weighted, values, relevance, [deciles])
    rows = by_frequency(predictions, hits(predictions, relevance), relevance, counts, deciles, sources)
    assert [row["decile"] for row in rows] == list(range(1, 11))
    for number, row in enumerate(rows):
        members = {int(label) for label in range(LABELS) if deciles[label] == number}
        pairs = {(query, label) for query in range(QUERIES) for label in members if truth[query, label]}
        found = {
            k: sum((q, int(label)) in pairs for q in range(QUERIES) for label in predictions[q, :k]) for k in (5, 10)
        }
        voting = [
            key
            for query in range(QUERIES)
            for key in keys[query].tolist()
            for label in (labels[key].tolist() if key < INSTANCES else [key - INSTANCES])
            if (query, label) in pairs
        ]
        assert (row["labels"], row["true"]) == (len(members), len(pairs))
        assert (row["least"], row["most"]) == (min(counts[list(members)]), max(counts[list(members)]))
        assert row["P@5"] == pytest.approx(100 * found[5] / (5 * QUERIES))
        if pairs:
            assert row["R@10"] == pytest.approx(100 * found[10] / len(pairs))
            assert row["instance_keys"] == pytest.approx(sum(key < INSTANCES for key in voting) / len(pairs))
            assert row["label_keys"] == pytest.approx(sum(key >= INSTANCES for key in voting) / len(pairs))
            assert row["label_key_share"] == pytest.approx(100 * np.mean([key >= INSTANCES for key in voting]))


def test_evaluate_gives_the_deciles_of_each_setting(built: Any) -> None:
    given = {"dataset": built.dataset, "store": built.store, "threads": 1, "lambda": [0, 0.5, 1]}
    evaluation = evaluate(EvaluateSettings.model_validate(given))
    assert [each["lambda"] for each in evaluation.deciles] == [0, 0.5, 1]
    for each, row in zip(evaluation.deciles, evaluation.rows, strict=True):
        for deciles in (each["deciles"], each["deciles_by_pairs"]):
            assert sum(decile["P@5"] for decile in deciles) == pytest.approx(row["P@5"])
            assert sum(decile["labels"] for decile in deciles) == 8
        for name in ("instance_keys", "label_keys"):
            labels, pairs = (
                sum(decile["true"] * (decile[name] or 0) for decile in each[kind])
                for kind in ("deciles", "deciles_by_pairs")
            )
            assert labels == pytest.approx(pairs)
    labels_only, both, instances_only = (
        {name: sum(decile[name] or 0 for decile in each["deciles"]) for name in ("instance_keys", "label_keys")}
        for each in evaluation.deciles
    )
    assert labels_only["instance_keys"] == instances_only["label_keys"] == 0
    assert both["instance_keys"] > 0
    assert both["label_keys"] > 0
