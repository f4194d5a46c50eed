"""Fixtures of the tests of live memories: a random memory that is quick to write, with words and with a ranker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.predictor import Predictor
from recollect.core.reranker.candidates import ALL_FEATURES, CLASSIFIER
from tests.core.reranker.forests import random_file
from tests.edits.rebuilt import Tables

VOCABULARY = [f"word{number}" for number in range(80)]
DIM, INSTANCES, LABELS = 384, 150, 40

# Opens tables as a bundle with the encoder of the built bundle.
Open = Callable[..., Predictor]


def random_texts(rng: np.random.Generator, count: int) -> list[str]:
    return [" ".join(rng.choice(VOCABULARY, size=int(rng.integers(2, 7)))) for _ in range(count)]


def random_vectors(rng: np.random.Generator, count: int) -> np.ndarray:
    """Unit vectors in a few groups, so that similarities differ."""
    vectors = rng.normal(size=(count, DIM)) + 1.5 * rng.normal(size=(8, DIM))[rng.integers(8, size=count)]
    unit: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def random_tables(rng: np.random.Generator) -> Tables:
    tables = Tables()
    for nth, vector in enumerate(random_vectors(rng, LABELS)):
        tables.labels[f"label {nth}"] = (random_texts(rng, 1)[0], vector)
    for nth, vector in enumerate(random_vectors(rng, INSTANCES)):
        own = rng.choice([*tables.labels], size=int(rng.integers(1, 4)), replace=False).tolist()
        tables.instances[f"instance {nth}"] = (random_texts(rng, 1)[0], own, vector)
    return tables


@pytest.fixture
def open_tables(built: Any, tmp_path: Path) -> Open:
    def open_(tables: Tables, **options: Any) -> Predictor:
        base, folder = built.store / "bundles" / built.version, tmp_path / f"bundle {len([*tmp_path.iterdir()])}"
        return tables.open(base, folder, **options)

    return open_


@pytest.fixture(params=["faiss", "milvus"])
def open_on_engine(request: pytest.FixtureRequest, open_tables: Open) -> Open:
    """Opens tables with their keys in files, and in Milvus."""
    if request.param == "faiss":
        return open_tables
    move = request.getfixturevalue("move_to_milvus")

    def open_(tables: Tables) -> Predictor:
        moved: Predictor = move(open_tables(tables).bundle.folder)
        return moved

    return open_


@pytest.fixture(scope="session")
def ranker() -> str:
    """A ranker whose trees split on all features. No threshold is near a value that rounding could move past it."""
    names = [name for name in ALL_FEATURES if name != CLASSIFIER]  # the bundle has no classifiers
    content = json.loads(random_file(np.random.default_rng(5), names).model_dump_json())
    for tree in content["trees"]:
        tree["threshold"] = [threshold * 0.31 + 0.0173 for threshold in tree["threshold"]]
    return json.dumps(content)
