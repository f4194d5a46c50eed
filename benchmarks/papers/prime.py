"""The claims of PRIME (Dahiya et al., 2025). Each public function measures one claim, with label prototypes alone."""

from __future__ import annotations

from benchmarks.papers.claims import Bench, Claim, Flags, main

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


def the_loss_of_label_texts_helps(bench: Bench) -> Claim:
    return bench.claim("Table 6", "P@1", "loss of label texts, none", (56.34, 51.71), NO_MARGIN, NO_TEXT)


def the_loss_of_label_texts_helps_rare(bench: Bench) -> Claim:
    return bench.claim("Table 6", "PSP@1", "loss of label texts, none", (31.23, 26.27), NO_MARGIN, NO_TEXT)


def the_dynamic_margin_helps(bench: Bench) -> Claim:
    return bench.claim("Table 6", "P@1", "dynamic margin, fixed", (57.4, 56.34), NO_LABEL_LOSS, NO_MARGIN)


def the_dynamic_margin_finds_more_labels(bench: Bench) -> Claim:
    return bench.claim("Table 6", "R@100", "dynamic margin, fixed", (62.3, 60.79), NO_LABEL_LOSS, NO_MARGIN)


def the_loss_from_label_to_query_helps(bench: Bench) -> Claim:
    return bench.claim("Table 6", "P@1", "label-to-query loss, none", (58.25, 57.4), NO_REGULARISER, NO_LABEL_LOSS)


def the_loss_from_label_to_query_helps_rare(bench: Bench) -> Claim:
    return bench.claim("Table 6", "PSP@1", "label-to-query loss, none", (30.83, 29.69), NO_REGULARISER, NO_LABEL_LOSS)


def the_regulariser_helps_rare(bench: Bench) -> Claim:
    return bench.claim("Table 6", "PSP@1", "regulariser, none", (31.68, 30.83), LITE, NO_REGULARISER)


def the_regulariser_finds_more_labels(bench: Bench) -> Claim:
    return bench.claim("Table 6", "R@100", "regulariser, none", (63.45, 62.78), LITE, NO_REGULARISER)


def a_second_positive_and_larger_batches_help(bench: Bench) -> Claim:
    return bench.claim("Table 6", "P@1", "PRIME, PRIME-lite", (58.58, 58.1), PRIME, LITE)


def free_vectors_help(bench: Bench) -> Claim:
    return bench.claim("Table 9", "P@1", "free vectors, none", (58.1, 57.0), LITE, NO_BANK)


def more_free_vectors_help(bench: Bench) -> Claim:
    return bench.claim("Table 9", "P@1", "many free vectors, few", (58.1, 57.09), LITE, SMALL_BANK)


def rare_positives_help(bench: Bench) -> Claim:
    return bench.claim("Table 11", "P@1", "positives by propensity, uniform", (58.1, 57.48), LITE, UNIFORM)


def rare_positives_help_rare_labels(bench: Bench) -> Claim:
    return bench.claim("Table 11", "PSP@1", "positives by propensity, uniform", (31.68, 29.65), LITE, UNIFORM)


def centroids_help_early(bench: Bench) -> Claim:
    return bench.claim("Fig. 3", "P@1", "centroids, none (early)", (), EARLY, EARLY_NO_CENTROIDS)


if __name__ == "__main__":
    main("prime", globals(), texts=3_000, epochs=8, batch_size=256)
