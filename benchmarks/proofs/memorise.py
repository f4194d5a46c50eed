"""DEXML, appendix C.1: a dual encoder can memorise pairs of random texts.

Every query and every label consists of 16 random tokens, and query i has label i.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.proofs.claim import Figures
from benchmarks.proofs.tiny import Texts, label_sets, random_texts, tiny_encoder, train_encoder, vectors
from recollect.trainer.memory.search import nearest

_LENGTH = 16
# Number of pairs, and of passes over them.
_SIZES = {1_000: 12, 4_000: 16}
_BATCH_SIZE = 500


def memorise(pairs: int = 1_000, epochs: int = 40, seed: int = 0, in_batch: bool = False) -> float:
    """Train with decoupled softmax; return P@1 in percent on the training pairs.

    100 means that all pairs are memorised.

    Args:
        pairs: Number of pairs.
        epochs: Passes over the pairs.
        seed: Seed of the texts and of the training.
        in_batch: Compare a query with the labels of its batch of 500 only, instead of with all labels in batches of
            100. The time of an epoch then grows linearly with the pairs.
    """
    random = np.random.default_rng(seed)
    queries, labels = (Texts(random_texts(random, pairs, _LENGTH)) for _ in range(2))
    model = tiny_encoder(seed, _LENGTH)
    own = label_sets([[row] for row in range(pairs)])
    pool = {"batch_size": _BATCH_SIZE, "hard_negatives": 0} if in_batch else {}
    train_encoder(model, queries, labels, own, "dexml", epochs, seed=seed, **pool)
    _, first = nearest(vectors(model, queries), vectors(model, labels), 1)
    return 100 * float((first[:, 0] == np.arange(pairs)).mean())


def measure_pairs(_: Path | None, __: Path, seed: int) -> Figures:
    return {
        f"P@1 of {pairs:,} pairs": memorise(pairs, epochs, seed, in_batch=pairs > 1_000)
        for pairs, epochs in _SIZES.items()
    }
