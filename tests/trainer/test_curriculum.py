from __future__ import annotations

import pytest

from trainer.curriculum import Curriculum


def due(curriculum: Curriculum, epochs: int) -> list[int]:
    return [curriculum.due(epoch) for epoch in range(epochs)]


def test_clusters_are_halved_at_every_clustering_down_to_the_fewest_and_made_anew_ever_after() -> None:
    assert due(Curriculum(40, 2, 3, 15), 12) == [0, 0, 40, 0, 0, 20, 0, 0, 15, 0, 0, 15]


def test_without_clusters_none_are_ever_due() -> None:
    assert not any(due(Curriculum(0, 0, 1, 15), 10))


@pytest.mark.parametrize(("clusters", "expected"), [(7, [7, 3, 2, 2]), (1, [2, 2, 2, 2])])
def test_clusters_are_never_fewer_than_the_batches_of_an_epoch(clusters: int, expected: list[int]) -> None:
    assert due(Curriculum(clusters, 0, 1, 2), 4) == expected


def test_a_long_training_ends_at_the_fewest() -> None:
    assert Curriculum(10**6, 0, 1, 3).due(10**6) == 3
