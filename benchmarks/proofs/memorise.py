"""DEXML, appendix C.1: a dual encoder can memorise pairs of random texts.

Every query and every label consists of 16 random tokens, and query i has label i.
"""

from __future__ import annotations

import numpy as np

from benchmarks.proofs.tiny import Texts, label_sets, random_texts, tiny_encoder, train_encoder, vectors
from trainer.memory.search import nearest

_LENGTH = 16


def prove(pairs: int = 1_000, epochs: int = 40, seed: int = 0) -> float:
    """Train with decoupled softmax; return P@1 in percent on the training pairs.

    100 means that all pairs are memorised.
    """
    random = np.random.default_rng(seed)
    queries, labels = (Texts(random_texts(random, pairs, _LENGTH)) for _ in range(2))
    model = tiny_encoder(seed, _LENGTH)
    train_encoder(model, queries, labels, label_sets([[row] for row in range(pairs)]), "dexml", epochs, seed=seed)
    _, first = nearest(vectors(model, queries), vectors(model, labels), 1)
    return 100 * float((first[:, 0] == np.arange(pairs)).mean())
