"""DEXML, section 4.1 and Figure 2: with softmax, the positives of a query compete; with decoupled softmax they do not.

A hundred training queries begin with a marker and have the labels 0 to 4. Only the text of label 0 contains the marker.
Test queries begin with the marker and have label 0 only. Softmax gives the five labels of a marked query the same
similarity, so that a test query gets label 0 only one time in five. Decoupled softmax can learn the marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.proofs.claim import Figures
from benchmarks.proofs.tiny import Texts, label_sets, random_texts, tiny_encoder, train_encoder, vectors
from recollect.trainer.memory.search import nearest

_MARKER, _LENGTH = 1, 8
_SHARED_LABELS = 5
# Softmax needs long training: with a third of the learning rate and a third of the epochs, label 0 still ranks first.
_LEARNING_RATE = 6e-3


@dataclass(frozen=True)
class Size:
    """Number of texts of each kind, and of passes over the queries. The defaults are those of the paper."""

    queries: int = 1_000
    marked: int = 100
    labels: int = 5_000
    test: int = 1_000
    epochs: int = 120


# With this size, a comparison takes about 15 seconds.
SMALL = Size(queries=300, marked=60, labels=600, test=200, epochs=40)


def compare_losses(size: Size = Size(), seed: int = 0) -> dict[str, float]:
    """Return P@1 in percent on the test queries, for `softmax` and `decoupled softmax`."""
    random = np.random.default_rng(seed)
    labels = random_texts(random, size.labels, _LENGTH)
    labels[0, 0] = _MARKER
    queries, test = (random_texts(random, rows, _LENGTH) for rows in (size.queries, size.test))
    queries[: size.marked, 0] = _MARKER
    test[:, 0] = _MARKER
    own = random.integers(_SHARED_LABELS, size.labels, size=(size.queries, _SHARED_LABELS))
    sets = [sorted({*row}) for row in own.tolist()]
    sets[: size.marked] = [list(range(_SHARED_LABELS))] * size.marked
    precision = {}
    for name, method in (("softmax", "infonce"), ("decoupled softmax", "dexml")):
        model = tiny_encoder(seed, _LENGTH, "cls")
        train_encoder(
            model,
            Texts(queries),
            Texts(labels),
            label_sets(sets),
            method,
            size.epochs,
            learning_rate=_LEARNING_RATE,
            seed=seed,
        )
        _, first = nearest(vectors(model, Texts(test)), vectors(model, Texts(labels)), 1)
        precision[name] = 100 * float((first[:, 0] == 0).mean())
    return precision


def measure_losses(_: Path | None, __: Path, seed: int) -> Figures:
    return compare_losses(SMALL, seed)
