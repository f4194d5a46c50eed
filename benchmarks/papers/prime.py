"""The claims of PRIME (Dahiya et al., 2025). Each row of `CLAIMS` is one, measured with label prototypes alone."""

from __future__ import annotations

from benchmarks.papers.claims import Flags, Measure, main

LITE: Flags = {"method": "prime", "positives": 1}
# Table 6, from bottom to top: each row lacks one more term of the loss.
NO_REGULARISER = LITE | {"regulariser_weight": 0}
NO_LABEL_LOSS = NO_REGULARISER | {"symmetric": False}
NO_MARGIN = NO_LABEL_LOSS | {"margin": (0.3, 0.3)}
NO_TEXT = NO_MARGIN | {"text_loss": False}
NO_BANK = LITE | {"prototype": ["text", "centroid"]}
SMALL_BANK = LITE | {"bank": 8}
PRIME: Flags = {"method": "prime", "positives": 2, "batch_size": 512}
UNIFORM = LITE | {"positive_sampling": "uniform"}
EARLY = LITE | {"max_steps": 16}
EARLY_NO_CENTROIDS = EARLY | {"prototype": ["text", "free"]}

CLAIMS: list[Measure] = [
    ("Table 6", "P@1", "loss of label texts, none", (56.34, 51.71), NO_MARGIN, NO_TEXT),
    ("Table 6", "PSP@1", "loss of label texts, none", (31.23, 26.27), NO_MARGIN, NO_TEXT),
    ("Table 6", "P@1", "dynamic margin, fixed", (57.4, 56.34), NO_LABEL_LOSS, NO_MARGIN),
    ("Table 6", "R@100", "dynamic margin, fixed", (62.3, 60.79), NO_LABEL_LOSS, NO_MARGIN),
    ("Table 6", "P@1", "label-to-query loss, none", (58.25, 57.4), NO_REGULARISER, NO_LABEL_LOSS),
    ("Table 6", "PSP@1", "label-to-query loss, none", (30.83, 29.69), NO_REGULARISER, NO_LABEL_LOSS),
    ("Table 6", "PSP@1", "regulariser, none", (31.68, 30.83), LITE, NO_REGULARISER),
    ("Table 6", "R@100", "regulariser, none", (63.45, 62.78), LITE, NO_REGULARISER),
    ("Table 6", "P@1", "PRIME, PRIME-lite", (58.58, 58.1), PRIME, LITE),
    ("Table 9", "P@1", "free vectors, none", (58.1, 57.0), LITE, NO_BANK),
    ("Table 9", "P@1", "many free vectors, few", (58.1, 57.09), LITE, SMALL_BANK),
    ("Table 11", "P@1", "positives by propensity, uniform", (58.1, 57.48), LITE, UNIFORM),
    ("Table 11", "PSP@1", "positives by propensity, uniform", (31.68, 29.65), LITE, UNIFORM),
    ("Fig. 3", "P@1", "centroids, none (early)", (), EARLY, EARLY_NO_CENTROIDS),
]

if __name__ == "__main__":
    main("prime", CLAIMS, texts=3_000, epochs=8, batch_size=256)
