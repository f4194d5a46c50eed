from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batch, Batches, Pairs
from recollect.trainer.training.negatives import HardNegatives
from tests.trainer.helpers import label_sets

few = settings(max_examples=25, deadline=None)


class Case(NamedTuple):
    """A dataset in plain Python, and the arguments of its sampler."""

    sets: list[set[int]]
    labels: int
    rows: list[int]
    batch_size: int
    positives: int
    hard_negatives: int | None
    seed: int
    mined: HardNegatives | None

    def batches(self) -> Batches:
        return Batches(
            label_sets(self.sets),
            self.labels,
            np.array(self.rows),
            self.batch_size,
            self.positives,
            self.hard_negatives,
            self.seed,
        )

    def epoch(self, number: int) -> list[Batch]:
        batches = self.batches()
        return [
            batches.at(step, self.mined) for step in range(number * batches.per_epoch, (number + 1) * batches.per_epoch)
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw instances with zero to many labels, some instances held out, and mined labels that are no true labels."""
    labels = draw(st.integers(1, 8))
    sets = draw(st.lists(st.sets(st.integers(0, labels - 1)), min_size=1, max_size=14))
    rows = sorted(draw(st.sets(st.integers(0, len(sets) - 1), min_size=1)))
    top = draw(st.integers(1, labels))
    candidates = [[label if label not in own else -1 for label in draw(st.permutations(range(labels)))] for own in sets]
    mined = HardNegatives(Sharded.of(np.array(candidates, dtype=np.int32)[:, :top]))
    return Case(
        sets,
        labels,
        rows,
        draw(st.integers(1, len(rows))),
        draw(st.integers(0, 3)),
        draw(st.none() | st.integers(0, labels)),
        draw(st.integers(0, 2**40)),
        draw(st.sampled_from([mined, None])),
    )


def labels_of(pairs: Pairs, batch: Batch) -> list[list[int]]:
    """Return a list of labels for each query that occurs in the pairs. A label of several pairs is repeated."""
    return [batch.pool[pairs.key[pairs.query == query]].tolist() for query in range(len(batch.rows))]


def contents(batch: Batch) -> list[list[int]]:
    fields = (batch.rows, batch.pool, *dataclasses.astuple(batch.relevant), *dataclasses.astuple(batch.positives))
    return [*(field.tolist() for field in fields), batch.label_sets.toarray().tolist()]


@few
@given(case=cases(), epoch=st.integers(0, 3))
def test_epoch_visits_every_row_once_in_batches_that_differ_by_at_most_one_query(case: Case, epoch: int) -> None:
    batches = [batch.rows.tolist() for batch in case.epoch(epoch)]
    assert sorted(row for rows in batches for row in rows) == case.rows
    sizes = list(map(len, batches))
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= case.batch_size


@few
@given(case=cases(), steps=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_batch_of_a_step_does_not_depend_on_earlier_calls(case: Case, steps: list[int]) -> None:
    batches = case.batches()
    for step in steps:
        assert contents(batches.at(step, case.mined)) == contents(case.batches().at(step, case.mined))


@few
@given(case=cases())
def test_positives_are_distinct_labels_of_their_query(case: Case) -> None:
    for batch in case.epoch(0):
        for row, chosen in zip(batch.rows, labels_of(batch.positives, batch), strict=True):
            assert len(set(chosen)) == len(chosen) == min(case.positives or case.labels, len(case.sets[row]))
            assert set(chosen) <= case.sets[row]


@few
@given(case=cases())
def test_pool_contains_exactly_the_drawn_positives_and_the_drawn_negatives(case: Case) -> None:
    for batch in case.epoch(1):
        pool = batch.pool.tolist()
        assert len(set(pool)) == len(pool)
        if case.hard_negatives is None:
            assert pool == list(range(case.labels))
            continue
        positives = {label for labels in labels_of(batch.positives, batch) for label in labels}
        mined = set() if case.mined is None else set(case.mined.labels.own[batch.rows].ravel().tolist()) - {-1}
        assert positives <= set(pool) <= positives | mined
        assert len(set(pool) - positives) <= case.hard_negatives * len(batch.rows)
        if case.mined is not None and case.hard_negatives >= case.mined.labels.own.shape[1]:
            assert set(pool) == positives | mined


@few
@given(case=cases())
def test_every_true_label_in_the_pool_is_relevant(case: Case) -> None:
    for batch in case.epoch(0):
        for row, relevant in zip(batch.rows, labels_of(batch.relevant, batch), strict=True):
            assert len(set(relevant)) == len(relevant)
            assert set(relevant) == case.sets[row] & set(batch.pool.tolist())


@few
@given(case=cases(), data=st.data())
def test_disjoint_instances_share_no_label_and_exclude_the_query_itself(case: Case, data: st.DataObject) -> None:
    for batch in case.epoch(0):
        spans = st.tuples(*2 * [st.integers(0, len(batch.rows))]).map(lambda span: (min(span), max(span)))
        queries, instances = data.draw(spans), data.draw(spans)
        expected = [
            [
                query != instance and not case.sets[batch.rows[query]] & case.sets[batch.rows[instance]]
                for instance in range(*instances)
            ]
            for query in range(*queries)
        ]
        assert batch.disjoint_instances(queries, instances).tolist() == expected


class TestClusteredBatches:
    """Eight clusters of five instances each, and one held-out instance."""

    ROWS = np.arange(40)
    CLUSTERS = np.append(np.arange(40) // 5, -1)

    def batches(self, batch_size: int = 10) -> Batches:
        return Case([{0}] * 41, 1, self.ROWS.tolist(), batch_size, 1, 0, 3, None).batches()

    @pytest.mark.parametrize("batch_size", [7, 10])
    def test_epoch_visits_every_row_once_cluster_by_cluster(self, batch_size: int) -> None:
        batches = self.batches(batch_size)
        for epoch in range(3):
            steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
            rows = np.concatenate([batches.at(step, None, self.CLUSTERS).rows for step in steps])
            np.testing.assert_array_equal(np.sort(rows), self.ROWS)
            assert np.count_nonzero(np.diff(self.CLUSTERS[rows])) == 7

    def test_queries_of_a_cluster_share_a_batch_if_the_cluster_fits(self) -> None:
        batches = self.batches()
        for step in range(8):
            assert np.unique(self.CLUSTERS[batches.at(step, None, self.CLUSTERS).rows]).size == 2

    def test_batch_of_a_step_does_not_depend_on_earlier_clusters(self) -> None:
        other = np.append(np.arange(40) % 8, -1)
        steps_and_clusters = [(step, clusters) for step in (5, 4, 0, 1) for clusters in (self.CLUSTERS, None, other)]
        batches = self.batches()
        seen = [batches.at(step, None, clusters).rows.tolist() for step, clusters in steps_and_clusters]
        assert seen == [self.batches().at(step, None, clusters).rows.tolist() for step, clusters in steps_and_clusters]
        assert len(set(map(tuple, seen))) == len(steps_and_clusters)


class TestWeightedPositives:
    STEPS = 500

    def drawn(self, weights: np.ndarray | None, positives: int, sets: list[set[int]] | None = None) -> list[list[int]]:
        """Return the labels that each step draws for its only query."""
        sets = [{0, 1, 2, 3}] if sets is None else sets
        batches = Batches(label_sets(sets), 5, np.arange(1), 1, positives, 0, 3, label_weights=weights)
        return [batches.at(step, None).pool.tolist() for step in range(self.STEPS)]

    def test_one_positive_is_drawn_in_proportion_to_its_weight(self) -> None:
        weights = np.array([1.0, 2.0, 3.0, 6.0, 100.0])  # the query does not have the last label
        counts = np.bincount(np.concatenate(self.drawn(weights, 1)), minlength=5)
        expected = self.STEPS * weights[:4] / weights[:4].sum()
        assert counts[4] == 0
        assert (((counts[:4] - expected) ** 2) / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = .001

    def test_several_positives_are_drawn_one_after_the_other_without_replacement(self) -> None:
        weights = np.array([1.0, 2.0, 3.0, 6.0, 1.0])
        drawn = self.drawn(weights, 2)
        assert all(len(set(labels)) == 2 for labels in drawn)
        share = weights[:4] / 12
        first_then = np.outer(share, share) / (1 - share)[:, None]
        expected = {(a, b): first_then[a, b] + first_then[b, a] for a in range(4) for b in range(a + 1, 4)}
        for pair, probability in expected.items():
            count = sum(tuple(labels) == pair for labels in drawn)
            assert abs(count - self.STEPS * probability) < 4.5 * np.sqrt(self.STEPS * probability * (1 - probability))
