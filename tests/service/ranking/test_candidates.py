"""Candidates and their features, against loops over single labels."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.service.bundle.values import Matrix, Values
from recollect.service.predictor.scoring import Ranking
from recollect.service.predictor.searcher import Neighbours
from recollect.service.ranking.candidates import (
    ALL_FEATURES,
    Candidates,
    Found,
    LabelFacts,
    Searches,
    find_candidates,
)
from recollect.service.ranking.names import Names

QUERIES, LABELS, INSTANCES, FOUND = 6, 30, 40, 8
TEXTS = [f"words of query {number}" for number in range(QUERIES)]


def random_found(rng: np.random.Generator, keys: int) -> Found:
    """Distinct keys for each query in order of similarity. Some places, and all places of query 2, have no key."""
    rows = np.stack([rng.permutation(keys)[:FOUND] for _ in range(QUERIES)])
    similarities = -np.sort(-rng.uniform(-1, 1, size=rows.shape), axis=1).astype(np.float32)
    rows[:, FOUND - 1], rows[2] = -1, -1
    return Found.by_vectors(Neighbours(np.where(rows < 0, -np.inf, similarities).astype(np.float32), rows), 0.1)


def random_case(seed: int, words: bool) -> tuple[Searches, Ranking, Values]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, size=INSTANCES)
    labels = np.concatenate([np.sort(rng.permutation(LABELS)[:size]) for size in sizes])
    values = Values(Matrix(np.concatenate([[0], np.cumsum(sizes)]), labels.astype(np.int32)), LABELS)
    rest = (random_found(rng, INSTANCES), random_found(rng, LABELS)) if words else None
    searches = Searches(random_found(rng, INSTANCES), random_found(rng, LABELS), rest)
    votes = LABELS // 3
    label = rng.integers(0, LABELS, size=QUERIES * votes)  # some pairs get two votes
    return searches, Ranking(np.arange(QUERIES + 1) * votes, label, rng.random(len(label))), values


def all_searches(searches: Searches) -> list[Found]:
    return [searches.instances, searches.labels, *(searches.by_words or ())]


def naive_support(found: Found, values: Values | None, query: int, label: int) -> list[tuple[int, float, float]]:
    """Place, similarity and weight of each key of a query that is evidence for a label."""
    rows = []
    for place, key in enumerate(found.keys[query].tolist()):
        if key < 0:
            continue
        own = [key] if values is None else values.gather(np.array([key]))[1].tolist()
        if label in own:
            rows.append((place, float(found.similarities[query, place]), float(found.weights[query, place])))
    return rows


def scores_of(voted: Ranking) -> dict[tuple[int, int], float]:
    scores: dict[tuple[int, int], float] = {}
    voting = np.repeat(np.arange(QUERIES), np.diff(voted.offsets))
    for query, label, share in zip(voting.tolist(), voted.label.tolist(), voted.score.tolist(), strict=True):
        scores[query, label] = scores.get((query, label), 0) + share
    return scores


def pairs(candidates: Candidates) -> list[tuple[int, int]]:
    return list(zip(candidates.query.tolist(), candidates.label.tolist(), strict=True))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_candidates_are_the_best_labels_by_each_measure(seed: int, words: bool) -> None:
    searches, voted, values = random_case(seed, words)
    admits = np.random.default_rng(seed).random(LABELS) < 0.8
    expected = set()
    for query in range(QUERIES):
        measures = [{label: score for (own, label), score in scores_of(voted).items() if own == query}]
        for number, found in enumerate(all_searches(searches)):
            sides = None if number % 2 else values
            support = {label: naive_support(found, sides, query, label) for label in range(LABELS)}
            measures.append({label: sum(row[2] for row in rows) for label, rows in support.items() if rows})
        for most, measure in zip([5, 3, 3, 3, 3], measures, strict=False):
            admitted = {label: value for label, value in measure.items() if admits[label] and value > 0}
            expected |= {(query, label) for label in sorted(admitted, key=lambda each: -admitted[each])[:most]}
    facts = LabelFacts(np.ones(LABELS, dtype=np.int64), Names.of([""] * LABELS))
    candidates = find_candidates(TEXTS, searches, voted, values, facts, admits, by_votes=5, by_others=3)
    assert pairs(candidates) == sorted(expected)


@pytest.mark.parametrize("seed", range(3))
def test_features_equal_those_of_a_loop_over_the_evidence(seed: int) -> None:
    searches, voted, values = random_case(seed, words=True)
    scores, counts = scores_of(voted), np.bincount(values.mapped.indices, minlength=LABELS)
    facts = LabelFacts(counts, Names.of([f"query {label}" for label in range(LABELS)]))
    candidates = find_candidates(TEXTS, searches, voted, values, facts)
    features = dict(zip(ALL_FEATURES, candidates.features.T, strict=True))
    for row, (query, label) in enumerate(pairs(candidates)):
        best = max((score for (own, _), score in scores.items() if own == query), default=0)
        expected: dict[str, float] = {
            "votes": scores.get((query, label), 0),
            "votes_of_best": scores.get((query, label), 0) / best,
            "training_count": counts[label],
            "name_words": 2,
            "name_share": 1 if label == query else 0.5,
            "name_place": 2 if label == query else np.nan,
        }
        support = naive_support(searches.instances, values, query, label)
        similarities = [similarity for _, similarity, _ in support]
        nearest = searches.instances.similarities[query, 0] if searches.instances.keys[query, 0] >= 0 else np.nan
        expected |= {
            "instance_votes": sum(weight for *_, weight in support),
            "instance_count": len(support),
            "instance_share": len(support) / max(1, counts[label]),
            "instance_place": support[0][0] if support else np.nan,
            "instance_similarity": max(similarities, default=np.nan),
            "instance_mean": np.mean(similarities) if support else np.nan,
            "instance_gap": nearest - max(similarities, default=np.nan),
            "nearest_instance": nearest,
        }
        support = naive_support(searches.labels, None, query, label)
        expected |= {
            "label_votes": sum(weight for *_, weight in support),
            "label_similarity": support[0][1] if support else np.nan,
            "label_place": support[0][0] if support else np.nan,
        }
        found = {name: features[name][row] for name in expected}
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-6, err_msg=str(found))


def test_a_query_has_the_same_candidates_and_features_alone_and_in_a_block() -> None:
    searches, voted, values = random_case(0, words=True)
    facts = LabelFacts(np.bincount(values.mapped.indices, minlength=LABELS), Names.of(["query"] * LABELS))
    block = find_candidates(TEXTS, searches, voted, values, facts)
    for query in range(QUERIES):
        row, votes = slice(query, query + 1), slice(*voted.offsets[query : query + 2])
        first, second, *words = (Found(*(part[row] for part in each)) for each in all_searches(searches))
        own = Ranking(voted.offsets[:2], voted.label[votes], voted.score[votes])
        alone = find_candidates([TEXTS[query]], Searches(first, second, (words[0], words[1])), own, values, facts)
        place = slice(*block.offsets[query : query + 2])
        assert alone.label.tolist() == block.label[place].tolist()
        np.testing.assert_array_equal(alone.features, block.features[place])
