from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from recollect.trainer.sharded import Sharded
from recollect.trainer.training.keys import Keys
from recollect.trainer.training.validation import Validation
from tests.trainer.helpers import label_sets, random_sets, random_units

LAMBDAS, TEMPERATURES, TOP_B, K = (0.05, 0.1, 0.2, 0.4, 0.7), (0.03, 0.05, 0.1), 200, 5


def keys_of(instances: np.ndarray, labels: np.ndarray) -> Keys:
    return Keys(Sharded.of(instances), labels)


def nearest_label(keys: Keys) -> np.ndarray:
    return (keys.instances.own @ keys.labels.T).argmax(axis=1)


def naive_score(keys: Keys, sets: list[set[int]], filtered: list[set[int]], held_out: np.ndarray) -> float:
    """Return the score at the best tau and lambda."""
    return max(
        naive_score_at(lambda_, temperature, keys, sets, filtered, held_out)
        for lambda_, temperature in itertools.product(LAMBDAS, TEMPERATURES)
    )


def naive_score_at(
    lambda_: float, temperature: float, keys: Keys, sets: list[set[int]], filtered: list[set[int]], held_out: np.ndarray
) -> float:
    """Compute the formulas of RAE-XMC literally, query by query, in float64."""
    voters = [row for row in range(len(sets)) if not held_out[row]]
    instance_keys = keys.instances.own.astype(np.float64)
    label_keys = keys.labels.astype(np.float64)
    scores = []
    for row in np.flatnonzero(held_out & [bool(own) for own in sets]):
        found = [(instance_keys[row] @ instance_keys[voter], sets[voter], lambda_) for voter in voters]
        found += [(instance_keys[row] @ key, {label}, 1 - lambda_) for label, key in enumerate(label_keys)]
        found = sorted(found, key=lambda key: -key[0])[:TOP_B]
        votes = dict.fromkeys(range(len(label_keys)), 0.0)
        for similarity, labels, share in found:
            for label in labels:
                votes[label] += share * math.exp((similarity - found[0][0]) / temperature)
        votes |= dict.fromkeys(filtered[row], 0.0)
        best = [label for label in sorted(votes, key=lambda label: -votes[label]) if votes[label] > 0][:K]
        gain = sum(1 / math.log2(place + 2) for place, label in enumerate(best) if label in sets[row])
        scores.append(gain / sum(1 / math.log2(place + 2) for place in range(min(K, len(sets[row])))))
    return 100 * sum(scores) / len(scores)


@pytest.mark.parametrize(("seed", "instances", "labels"), [(0, 12, 7), (1, 40, 3), (2, 130, 80)])
def test_validation_score_equals_the_formula_and_held_out_instances_do_not_vote(
    seed: int, instances: int, labels: int
) -> None:
    rng = np.random.default_rng(seed)
    sets = random_sets(rng, instances, labels)
    keys = keys_of(random_units(rng, instances, 6), random_units(rng, labels, 6))
    held_out = rng.random(instances) < 0.3
    assert held_out.any()
    assert not all(sets[row] for row in np.flatnonzero(held_out)) or seed == 0  # no queries, and not in the memory
    filtered = [
        {int(label)} - own if row % 3 else set()
        for row, (label, own) in enumerate(zip(nearest_label(keys), sets, strict=True))
    ]
    for removed in ([set[int]()] * instances, filtered):
        validation = Validation(held_out, label_sets(sets), labels, "cpu", label_sets(removed))
        expected = naive_score(keys, sets, removed, held_out)
        assert validation.score(keys) == pytest.approx(expected, abs=1e-3)
