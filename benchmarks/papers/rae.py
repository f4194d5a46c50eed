"""The claims of RAE-XMC (Wang et al., 2025). Each row of `CLAIMS` is one claim."""

from __future__ import annotations

import json
import random

from benchmarks.papers.claims import Bench, Claim, Flags, Measure, main, random_text, words_of, write

RAE: Flags = {"method": "rae", "lambda": 0.5}
LABELS, INSTANCES = RAE | {"lambda": 0}, RAE | {"lambda": 1}
# Eq. 10 without its instances is the decoupled softmax.
NO_INSTANCES: Flags = RAE | {"method": "dexml", "positives": 1, "hard_negatives": 2}
JOINT, SEPARATE = RAE | {"memories": "joint"}, RAE | {"memories": "separate"}
NO_MINING = RAE | {"hard_negatives": 0}
DEXML: Flags = {"method": "dexml", "lambda": 0}
FROZEN: Flags = {"epochs": 0, "lambda": 0}
MEMORY: Flags = {"lambda": 0.5}


def all_negatives_cost_time(bench: Bench) -> Claim:
    few, many = (_random_titles(bench, labels) for labels in (bench.pairs // 20, bench.pairs // 2))
    growth: dict[str, list[float]] = {"dexml": [], "rae": []}
    for seed in range(len(bench.samples)):
        for method, factors in growth.items():
            # In turn, so that the load of the machine is the same for both. The minimum is the least disturbed.
            rounds = [[_seconds_a_step(each, method, 3 * seed + turn) for each in (few, many)] for turn in range(3)]
            fewest, most = (min(seconds) for seconds in zip(*rounds, strict=True))
            factors.append(most / fewest)
    text = "factor on the time of a step with 10 times the labels: DEXML, RAE"
    return Claim("Fig. 2", text, (), growth["dexml"], growth["rae"])


def _random_titles(bench: Bench, labels: int) -> Bench:
    rng, words = random.Random(labels), words_of(bench.base)
    queries = [{"text": random_text(rng, words), "labels": [rng.randrange(labels)]} for _ in range(500)]
    texts = [{"text": random_text(rng, words)} for _ in range(labels)]
    sample = write(bench.work / f"{labels}-titles", train=queries, test=queries[:1], labels=texts)
    return bench.beside(f"{labels}-labels", [sample], {}, max_steps=6, batch_size=256)


def _seconds_a_step(bench: Bench, method: str, seed: int) -> float:
    """Seconds that the gradient of a step takes, without the search for hard negatives."""
    (run,) = bench.train(method=method, seed=seed)
    log = json.loads((run / "training.json").read_text())
    return float(log["activities"]["gradient"] / log["progress"]["step"])


def memory_helps_an_encoder_that_matches_no_labels(bench: Bench) -> Claim:
    untrained = bench.beside("random", bench.samples, {"random": True})
    text = "random vectors (DistilBERT) with memory, without"
    return untrained.claim("Table 5", "P@1", text, (35.59, 21.4), FROZEN | MEMORY, FROZEN)


CLAIMS: list[Measure] = [
    ("Table 1", "P@1", "RAE, DEXML (equal steps)", (58.48, 58.43), RAE, DEXML),
    ("Table 1", "R@100", "RAE, DEXML (equal steps)", (66.88, 64.26), RAE, DEXML),
    all_negatives_cost_time,
    ("Table 2", "F1@5 head", "λ 1, 0", (34.5, 15.9), INSTANCES, LABELS),
    ("Table 2", "F1@5 tail", "λ 0, 1", (14.2, 9.9), LABELS, INSTANCES),
    ("Table 2", "F1@5 extreme tail", "λ 0, 1", (22.0, 12.0), LABELS, INSTANCES),
    ("Table 2", "F1@5 head", "RAE, DEXML", (33.8, 28.7), RAE, DEXML),
    ("Table 3", "P@1", "instances as negatives, none", (58.43, 58.12), RAE, NO_INSTANCES),
    ("Table 3", "P@5", "instances as negatives, none", (47.0, 46.75), RAE, NO_INSTANCES),
    ("Table 3", "P@1", "hard negatives, none", (58.43, 57.94), RAE, NO_MINING),
    ("Table 3", "R@100", "no hard negatives, some", (67.22, 66.88), NO_MINING, RAE),
    ("Table 4", "P@1", "joint, separate memories", (58.48, 53.95), JOINT, SEPARATE),
    ("Table 4", "P@5", "joint, separate memories", (47.0, 44.1), JOINT, SEPARATE),
    ("Table 4", "R@100", "joint, separate memories", (66.88, 63.52), JOINT, SEPARATE),
    ("Table 5", "P@1", "DEXML with memory, without", (58.83, 58.4), DEXML | MEMORY, DEXML),
    ("Table 5", "P@1", "frozen (GTE) with memory, without", (47.03, 27.16), FROZEN | MEMORY, FROZEN),
    memory_helps_an_encoder_that_matches_no_labels,
    ("Table 8", "P@5", "λ .01, 0", (41.9, 38.71), RAE | {"lambda": 0.01}, LABELS),
    ("Table 8", "P@1", "λ .5, 0", (57.98, 49.41), RAE, LABELS),
    ("Table 8", "P@1", "λ .5, 1", (57.98, 51.93), RAE, INSTANCES),
    ("Table 8", "P@5", "λ .5, 1", (46.39, 41.61), RAE, INSTANCES),
    ("Fig. 3", "P@5", "b 200, 10", (), RAE, RAE | {"top_b": 10}),
]

if __name__ == "__main__":
    main("rae", CLAIMS, texts=6_000, epochs=5, batch_size=256)
