"""The claims of UniDEC (Kharbanda et al., 2024). Each row of `CLAIMS` is one, measured with label keys alone."""

from __future__ import annotations

from benchmarks.papers.claims import Flags, Measure, main

UNIDEC: Flags = {"method": "unidec", "positives": 3, "hard_negatives": 6}
ENCODER, CLASSIFIER = UNIDEC | {"view": "dual encoder"}, UNIDEC | {"view": "classifier"}
NO_MINING = UNIDEC | {"hard_negatives": 0}
ONE_POSITIVE: Flags = {"method": "supcon", "positives": 1, "hard_negatives": 6}
FOUR_POSITIVES = ONE_POSITIVE | {"positives": 4}
DEXML = ONE_POSITIVE | {"method": "dexml"}

CLAIMS: list[Measure] = [
    ("Table 5", "P@1", "both views, dual encoder", (53.79, 47.49), UNIDEC, ENCODER),
    ("Table 5", "P@1", "both views, classifier", (53.79, 46.26), UNIDEC, CLASSIFIER),
    ("Table 5", "PSP@5", "both views, dual encoder", (37.96, 34.02), UNIDEC, ENCODER),
    ("Table 5", "PSP@5", "both views, classifier", (37.96, 34.44), UNIDEC, CLASSIFIER),
    ("Table 5", "P@1", "hard negatives, none", (53.79, 48.36), UNIDEC, NO_MINING),
    ("Table 5", "PSP@1", "no hard negatives, some", (34.03, 32.19), NO_MINING, UNIDEC),
    ("Table 6", "P@1", "SupconDE with 1 positive, 4", (51.03, 50.31), ONE_POSITIVE, FOUR_POSITIVES),
    ("Table 6", "PSP@5", "SupconDE with 4 positives, 1", (35.92, 35.25), FOUR_POSITIVES, ONE_POSITIVE),
    ("Table 2", "P@1", "SupconDE, DEXML (equal pools)", (51.03, 42.15), ONE_POSITIVE, DEXML),
]

if __name__ == "__main__":
    main("unidec", CLAIMS, texts=3_000, epochs=8, batch_size=256)
