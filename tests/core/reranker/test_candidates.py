"""Candidates and their features, against loops over single labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recollect.core.bundle.values import Matrix, Values
from recollect.core.neighbours import Found, Neighbours, join_parts
from recollect.core.options import Voting
from recollect.core.reranker.candidates import ALL_FEATURES, Candidates, find_candidates
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.scoring import WeightedKeys, score_labels, weigh_keys
from recollect.core.words.names import Names
from recollect.core.words.terms import Words
from recollect.index_builder.reranker.cooccurrence import count_cooccurrence
from recollect.trainer.data.split import LabelSets

QUERIES, LABELS, INSTANCES, FOUND = 6, 30, 40, 8
LAMBDA, TEMPERATURE = 0.6, 0.1
HOW = Voting(LAMBDA, TEMPERATURE, top_b=1)
TEXTS = [f"words of query {number}" for number in range(QUERIES)]


def random_found(rng: np.random.Generator, keys: int) -> Neighbours:
    """Distinct keys for each query in order of similarity. Some places, and all places of query 2, have no key."""
    rows = np.stack([rng.permutation(keys)[:FOUND] for _ in range(QUERIES)])
    similarities = -np.sort(-rng.uniform(-1, 1, size=rows.shape), axis=1).astype(np.float32)
    rows[:, FOUND - 1], rows[2] = -1, -1
    return Neighbours(np.where(rows < 0, -np.inf, similarities).astype(np.float32), rows)


def random_case(seed: int, words: bool) -> tuple[Found, WeightedKeys, Values]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, size=INSTANCES)
    labels = np.concatenate([np.sort(rng.permutation(LABELS)[:size]) for size in sizes])
    values = Values(Matrix(np.concatenate([[0], np.cumsum(sizes)]), labels.astype(np.int32)), LABELS)
    rest = (random_found(rng, INSTANCES), random_found(rng, LABELS)) if words else None
    found = Found(random_found(rng, INSTANCES), random_found(rng, LABELS), rest)
    nearest = join_parts(found.instances, found.labels, INSTANCES, FOUND, LAMBDA)
    return found, weigh_keys(nearest, TEMPERATURE, values), values


def find(case: tuple[Found, WeightedKeys, Values], facts: LabelFacts, **rest: Any) -> Candidates:
    found, voting, values = case
    return find_candidates(Words.of(TEXTS[: len(voting.keys)]), found, voting, HOW, values, facts, **rest)


def all_searches(found: Found) -> list[WeightedKeys]:
    """The keys of each search with their weights: of those by words, the cube of the similarity."""
    searches = [weigh_keys(each, TEMPERATURE, None) for each in (found.instances, found.labels)]
    for each in found.by_words or ():
        searches.append(weigh_keys(Neighbours(*(part[:, :0] for part in each.arrays)), 1.0, None, each, 1.0))
    return searches


Support = list[tuple[int, float, float]]


def naive_support(found: Neighbours, weighted: WeightedKeys, values: Values | None, query: int, label: int) -> Support:
    """Place, similarity and weight of each key of a query that is evidence for a label."""
    rows = []
    for place, key in enumerate(found.keys[query].tolist()):
        if key < 0:
            continue
        own = [key] if values is None else values.gather(np.array([key]))[1].tolist()
        if label in own:
            rows.append((place, float(found.similarities[query, place]), float(weighted.weights[query, place])))
    return rows


def scores_of(voting: WeightedKeys, values: Values) -> dict[tuple[int, int], float]:
    voted = score_labels(voting, LAMBDA, values)
    return dict(zip(zip(voted.query.tolist(), voted.label.tolist(), strict=True), voted.score.tolist(), strict=True))


def pairs(candidates: Candidates) -> list[tuple[int, int]]:
    return list(zip(candidates.query.tolist(), candidates.label.tolist(), strict=True))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_candidates_are_the_best_labels_by_each_measure(seed: int, words: bool) -> None:
    found, voting, values = case = random_case(seed, words)
    admits = np.random.default_rng(seed).random(LABELS) < 0.8
    weighted, scores = all_searches(found), scores_of(voting, values)
    searches = [found.instances, found.labels, *(found.by_words or ())]
    expected = set()
    for query in range(QUERIES):
        measures = [{label: score for (own, label), score in scores.items() if own == query}]
        for number, (search, keys) in enumerate(zip(searches, weighted, strict=True)):
            sides = None if number % 2 else values
            support = {label: naive_support(search, keys, sides, query, label) for label in range(LABELS)}
            measures.append({label: sum(row[2] for row in rows) for label, rows in support.items() if rows})
        for most, measure in zip([5, 3, 3, 3, 3], measures, strict=False):
            admitted = {label: value for label, value in measure.items() if admits[label] and value > 0}
            expected |= {(query, label) for label in sorted(admitted, key=lambda each: -admitted[each])[:most]}
    facts = LabelFacts(np.ones(LABELS, dtype=np.int32), Names.of([""] * LABELS))
    candidates = find(case, facts, admits=admits, limits=(5, 3))
    assert sorted(pairs(candidates)) == sorted(expected)


@pytest.mark.parametrize("seed", range(3))
def test_features_equal_those_of_a_loop_over_the_evidence(seed: int) -> None:
    found, voting, values = case = random_case(seed, words=True)
    scores, counts = scores_of(voting, values), np.bincount(values.bundle_values.indices, minlength=LABELS)
    instances, labels, *_ = all_searches(found)
    names = Names.of([f"queryable {label}" if label % 3 else f"query {label}" for label in range(LABELS)])
    together = count_cooccurrence(LabelSets(values.bundle_values.indptr, values.bundle_values.indices), LABELS)
    sets = [set(values.gather(np.array([row]))[1].tolist()) for row in range(INSTANCES)]
    candidates = find(case, LabelFacts(counts.astype(np.int32), names, together))
    of_query = {query: [label for own, label in pairs(candidates) if own == query] for query in range(QUERIES)}
    features = dict(zip(ALL_FEATURES, candidates.features.T, strict=True))
    for row, (query, label) in enumerate(pairs(candidates)):
        best = max((score for (own, _), score in scores.items() if own == query), default=1)
        expected: dict[str, float] = {
            "votes": scores.get((query, label), 0),
            "votes_of_best": scores.get((query, label), 0) / best,
            "training_count": counts[label],
            "name_words": 2,
            "name_share": ((label % 3 == 0) + (label == query)) / 2,
            "name_place": 2 if label == query and label % 3 == 0 else np.nan,
            "stem_share": 1 if label == query else 0.5,  # query and queryable have one stem
            "stem_count": 1 if label == query else LABELS,
            "stem_place": 2,
            "cooccurrence": sum(
                scores.get((query, other), 0)
                * round(65_535 * sum({label, other} <= own for own in sets) / counts[other])
                / 65_535
                for other in of_query[query]
                if other != label and counts[other]
            ),
        }
        support = naive_support(found.instances, instances, values, query, label)
        similarities = [similarity for _, similarity, _ in support]
        nearest = found.instances.similarities[query, 0] if found.instances.keys[query, 0] >= 0 else np.nan
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
        support = naive_support(found.labels, labels, None, query, label)
        expected |= {
            "label_votes": sum(weight for *_, weight in support),
            "label_similarity": support[0][1] if support else np.nan,
            "label_place": support[0][0] if support else np.nan,
        }
        shown = {name: features[name][row] for name in expected}
        np.testing.assert_allclose(list(shown.values()), list(expected.values()), rtol=1e-6, err_msg=str(shown))
