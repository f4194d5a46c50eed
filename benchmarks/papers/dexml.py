"""The claims of DEXML (Gupta et al., 2024). Each row of `CLAIMS` is one, measured with label keys alone."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.papers.claims import Bench, Claim, Flags, Measure, main, random_text, words_of, write

ALL: Flags = {"method": "dexml"}
IN_BATCH, HARD_1, HARD_10 = (ALL | {"hard_negatives": count} for count in (0, 1, 10))
# Random texts need easy negatives first: an untrained encoder gives all texts one vector if it starts with hard ones.
LATE = ALL | {"hard_negatives": 2, "mine_from": 5}
SOFTMAX: Flags = {"method": "infonce", "hard_negatives": "all", "positives": 0}
SOFTMAX_10 = SOFTMAX | {"hard_negatives": 10}
SOFT_TOP_5: Flags = {"method": "softtopk", "softtopk_k": 5}
SOFT_TOP_100: Flags = {"method": "softtopk", "softtopk_k": 100}
OVA: Flags = {"method": "ova"}


def decoupled_softmax_learns_the_easy_label(bench: Bench) -> Claim:
    samples = [_easy_label(bench, seed) for seed in range(len(bench.samples))]
    synthetic = bench.beside("easy", samples, {"even": True}, epochs=8, learning_rate=1e-3, label_max_length=32)
    return synthetic.claim("Fig. 2", "P@1", "decoupled softmax, softmax", (100, 20), ALL, SOFTMAX)


def hard_negatives_memorise_random_pairs(bench: Bench) -> Claim:
    samples = [_random_pairs(bench, seed) for seed in range(len(bench.samples))]
    flags = {"epochs": 8, "batch_size": 32, "learning_rate": 1e-3, "label_max_length": 32}
    synthetic = bench.beside("pairs", samples, {"even": True, "dim": 28}, **flags)
    text = f"hard, in-batch negatives ({bench.pairs:,} random pairs; paper: a million)"
    return synthetic.claim("C.1", "P@1", text, (99.93, 81.21), LATE, IN_BATCH)


def _easy_label(bench: Bench, seed: int) -> Path:
    """A tenth of the queries starts with the last word of label 0, and has four other labels too."""
    rng, words = random.Random(seed), words_of(bench.base)
    first, queries = rng.choice(words), bench.pairs // 10
    labels = [{"text": random_text(rng, words)} for _ in range(bench.pairs // 2)]
    labels[0]["text"] += f" {first}"

    def easy() -> str:
        return f"{first} {random_text(rng, words).partition(' ')[2]}"

    train = [{"text": easy(), "labels": [0, 1, 2, 3, 4]} for _ in range(queries // 10)]
    others = range(queries * 9 // 10)
    train += [{"text": random_text(rng, words), "labels": [rng.randrange(5, len(labels))]} for _ in others]
    test = [{"text": easy(), "labels": [0]} for _ in range(queries)]
    return write(bench.work / f"easy-label{seed}", train=train, test=test, labels=labels)


def _random_pairs(bench: Bench, seed: int) -> Path:
    rng, words = random.Random(seed), words_of(bench.base)
    train = [{"text": random_text(rng, words), "labels": [row]} for row in range(bench.pairs)]
    labels = [{"text": random_text(rng, words)} for _ in train]
    return write(bench.work / f"random-pairs{seed}", train=train, test=train, labels=labels)


CLAIMS: list[Measure] = [
    ("Table 3", "P@1", "1 hard negative, 0", (49.16, 42.15), HARD_1, IN_BATCH),
    ("Table 3", "P@1", "10 hard negatives, 1", (54.01, 49.16), HARD_10, HARD_1),
    ("Table 3", "P@1", "all negatives, 10 hard", (58.4, 54.01), ALL, HARD_10),
    ("Table 4", "P@1", "decoupled softmax, BCE", (86.78, 0.1), ALL, {"method": "bce"}),
    ("Table 4", "P@1", "decoupled softmax, softmax", (86.78, 80.05), ALL, SOFTMAX),
    ("Table 4", "P@5", "decoupled softmax, softmax", (60.19, 58.36), ALL, SOFTMAX),
    ("Table 4", "R@100", "softmax, decoupled softmax", (92.57, 91.75), SOFTMAX, ALL),
    ("Table 4", "P@5", "SoftTop-5, decoupled softmax", (60.95, 60.19), SOFT_TOP_5, ALL),
    ("Table 4", "P@1", "decoupled softmax, SoftTop-5", (86.78, 83.42), ALL, SOFT_TOP_5),
    ("Table 4", "R@100", "SoftTop-100, decoupled softmax", (93.72, 91.75), SOFT_TOP_100, ALL),
    ("Table 12", "P@1", "decoupled softmax, softmax (10 hard)", (54.01, 51.19), HARD_10, SOFTMAX_10),
    ("Table 1", "PSP@5", "DEXML, OvA classifier", (36.58, 25.91), ALL, OVA),
    ("Fig. 7", "F1@5 extreme tail", "DEXML, OvA classifier", (), ALL, OVA),
    ("Fig. 7", "F1@5 torso", "all negatives, in-batch", (), ALL, IN_BATCH),
    decoupled_softmax_learns_the_easy_label,
    hard_negatives_memorise_random_pairs,
]

if __name__ == "__main__":
    main("dexml", CLAIMS, texts=3_000, epochs=8, batch_size=256)
