"""Keys for tests: random, clustered and enriched unit vectors, and an index that is opened as the service opens it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recollect.core.neighbours import Neighbours
from recollect.core.search.searcher import KeyIndex, OpenIndex
from recollect.index_builder.faiss_index import Keys, KeysToIndex, build_index, write_index
from recollect.index_builder.recall import recall
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.label_keys import LabelKeys


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_keys(rows: int, dim: int = 16, dtype: str = "float32") -> np.ndarray:
    return unit(np.random.default_rng(7).standard_normal((rows, dim))).astype(dtype)


def clustered_keys(rows: int, dim: int = 32) -> np.ndarray:
    """Keys around 50 centres."""
    rng = np.random.default_rng(1)
    return unit(rng.normal(size=(50, dim))[rng.integers(50, size=rows)] + rng.normal(size=(rows, dim)) / 2)


def near(keys: np.ndarray, queries: int) -> np.ndarray:
    """Queries close to the first keys."""
    return unit(keys[:queries] + np.random.default_rng(2).normal(size=(queries, keys.shape[1])) / 20)


def enriched(labels: int) -> LabelKeys:
    """Label keys that are half text and half instances. Every seventh label has no instance; all others have two."""
    vectors, rows = random_keys(3 * labels, dtype="float16"), np.arange(2 * labels, dtype=np.int32) % labels
    kept = rows % 7 != 0
    sets = LabelSets(np.concatenate([[0], np.cumsum(kept)]), rows[kept])
    return LabelKeys(vectors[:labels], vectors[labels:], sets, 0.5)


def opened(keys: Keys, kind: str, folder: Path) -> KeyIndex:
    """Build and write an index, and open its file as the service does."""
    index, info = build_index(KeysToIndex(keys), kind)
    write_index(index, folder / "keys.faiss")
    return KeyIndex(OpenIndex(folder / "keys.faiss"), info)


def recall_of(index: KeyIndex, keys: Keys, queries: np.ndarray, exact: Neighbours) -> float:
    """Recall of the keys that an index finds."""
    return recall(index.search(queries, exact.keys.shape[1]).keys, keys, queries, exact)
