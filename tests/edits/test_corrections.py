"""Corrections: a rejected label gets a lower score for near queries, and undoing a correction restores every answer."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from recollect.core.answers import Answer
from recollect.core.options import AnswerOptions
from recollect.core.predictor import Predictor
from recollect.core.tables.entries import PutCorrection
from tests.edits.conftest import Open, random_tables, random_vectors
from tests.edits.rebuilt import logged
from tests.edits.test_equality import ask

TAU = 0.1
OPTIONS = AnswerOptions(lambda_=0.4, temperature=TAU, top_b=60, top_k=100, explain=True, word_weight=0.3)
QUERY = "word1 word2 word3"


@pytest.fixture
def live(open_tables: Open, ranker: str) -> Predictor:
    return open_tables(random_tables(np.random.default_rng(1)), words=True, ranker=ranker)


def query_near(vector: np.ndarray, distance: float) -> np.ndarray:
    noise = random_vectors(np.random.default_rng(2), 1)[0]
    near = vector + distance * noise
    unit: np.ndarray = (near / np.linalg.norm(near)).astype(np.float32)
    return unit


def answer_one(predictor: Predictor, vector: np.ndarray, options: AnswerOptions = OPTIONS) -> Answer:
    (answer,) = ask(predictor, [QUERY], vector[None], options)
    return answer


def scores(answer: Answer) -> dict[str, float]:
    return {label.uid: label.score for label in answer.labels}


def test_correction_multiplies_the_score_of_its_label_also_the_votes_by_words(live: Predictor) -> None:
    (vector,) = random_vectors(np.random.default_rng(3), 1)
    near = query_near(vector, 0.2)
    before = scores(answer_one(live, near))
    rejected = max(before, key=lambda uid: before[uid])
    live.apply(logged([PutCorrection("c", QUERY, rejected, vector)]))
    answer, factor = answer_one(live, near), 1 - math.exp((float(near.astype(float) @ vector) - 1) / TAU)
    assert scores(answer) == pytest.approx(before | {rejected: before[rejected] * factor}, abs=1e-6)
    (label,) = (each for each in answer.labels if each.uid == rejected)
    (term,) = (term for term in label.because or [] if term.share < 0)
    assert (term.kind, term.uid, term.text) == ("correction", "c", QUERY)


def test_correction_adds_the_logarithm_of_its_factor_to_the_logit(live: Predictor) -> None:
    options = dataclasses.replace(OPTIONS, order="probability")
    (vector,) = random_vectors(np.random.default_rng(4), 1)
    near = query_near(vector, 0.2)
    before = {label.uid: label for label in answer_one(live, near, options).labels}
    rejected = next(iter(before))
    live.apply(logged([PutCorrection("c", QUERY, rejected, vector)]))
    factor = 1 - math.exp((float(near.astype(float) @ vector) - 1) / TAU)
    for query, expected in ((near, math.log(factor)), (vector, math.log(1e-6))):
        (label,) = (each for each in answer_one(live, query, options).labels if each.uid == rejected)
        (term,) = (term for term in label.ranked_by or [] if term.feature == "correction")
        assert term.log_odds == pytest.approx(expected, abs=1e-4)
    last = answer_one(live, vector, options).labels[-1]
    assert last.score == 0 or last.uid != rejected  # candidates come before labels that only votes found
