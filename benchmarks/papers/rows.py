"""The claims of the papers as data: two settings, the metric that compares them, and the paper's figures.

A setting has flags of `recollect.train`, and the keys of `claims.ANSWER` (how a trained run answers) and
`claims.SAMPLE` (what it is trained on). The default answers with label keys alone, as DEXML, PRIME and UniDEC do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Setting = dict[str, Any]


class Claim(NamedTuple):
    """A claim that the first of two settings has the higher metric.

    Attributes:
        where: Table, figure or section of the paper.
        dataset: The dataset of the paper's figures.
        metric: A metric of `claims.measure`.
        names: The names of both settings, separated by a comma.
        paper: The paper's figures for both, as printed; empty if the paper has a chart only.
        first: The first setting.
        second: The second setting.
    """

    where: str
    dataset: str
    metric: str
    names: str
    paper: tuple[float, float] | tuple[()]
    first: Setting
    second: Setting


AMAZON, EURLEX, TOKENS = "LF-AmazonTitles-1.3M", "EURLex-4K", "random tokens"

# ---- RAE-XMC (Wang et al., 2025) ----

RAE: Setting = {"method": "rae", "lambda": 0.5}
LABELS, INSTANCES = RAE | {"lambda": 0}, RAE | {"lambda": 1}
# Eq. 10 without its instances is the decoupled softmax.
NO_INSTANCES = RAE | {"method": "dexml", "positives": 1, "hard_negatives": 2}
NO_MINING = RAE | {"hard_negatives": 0}
# Half of the keys from each memory, so that both sides combine 200 keys.
SEPARATE = RAE | {"memories": "separate", "top_b": 100}
TENTH_OF_THE_STEPS = RAE | {"max_steps": 10}
MEMORY: Setting = {"lambda": 0.5}
DEXML: Setting = {"method": "dexml"}
FROZEN: Setting = {"epochs": 0}
RANDOM = FROZEN | {"sample": "random vectors"}

RAE_XMC = [
    Claim("Table 1", AMAZON, "P@5", "RAE, DEXML (equal steps)", (47.0, 45.48), RAE, DEXML),
    Claim("Table 1", AMAZON, "R@100", "RAE, DEXML (equal steps)", (66.88, 64.26), RAE, DEXML),
    Claim("Fig. 2", AMAZON, "P@1", "RAE after a tenth of DEXML's steps, DEXML (proxy)", (), TENTH_OF_THE_STEPS, DEXML),
    Claim("Table 2", AMAZON, "F1@5 head", "λ 1, λ 0", (34.5, 15.9), INSTANCES, LABELS),
    Claim("Table 2", AMAZON, "F1@5 tail", "λ 0, λ 1", (14.2, 9.9), LABELS, INSTANCES),
    Claim("Table 2", AMAZON, "F1@5 extreme tail", "λ 0, λ 1", (22.0, 12.0), LABELS, INSTANCES),
    Claim("Table 2", AMAZON, "F1@5 head", "RAE, DEXML", (33.8, 28.7), RAE, DEXML),
    Claim("Table 3", AMAZON, "P@1", "instances as negatives, none", (58.43, 58.12), RAE, NO_INSTANCES),
    Claim("Table 3", AMAZON, "P@5", "instances as negatives, none", (47.0, 46.75), RAE, NO_INSTANCES),
    Claim("Table 3", AMAZON, "P@1", "hard negatives, none", (58.43, 57.94), RAE, NO_MINING),
    Claim("Table 3", AMAZON, "R@100", "no hard negatives, some", (67.22, 66.88), NO_MINING, RAE),
    Claim("Table 4", AMAZON, "P@1", "joint, separate memories", (58.48, 53.95), RAE, SEPARATE),
    Claim("Table 4", AMAZON, "P@5", "joint, separate memories", (47.0, 44.1), RAE, SEPARATE),
    Claim("Table 4", AMAZON, "R@100", "joint, separate memories", (66.88, 63.52), RAE, SEPARATE),
    Claim("Table 5", AMAZON, "P@1", "DEXML with memory, without", (58.83, 58.4), DEXML | MEMORY, DEXML),
    Claim("Table 5", AMAZON, "P@1", "frozen (GTE) with memory, without", (47.03, 27.16), FROZEN | MEMORY, FROZEN),
    Claim(
        "Table 5",
        AMAZON,
        "P@1",
        "random vectors (DistilBERT) with memory, without",
        (35.59, 21.4),
        RANDOM | MEMORY,
        RANDOM,
    ),
    Claim("Table 8", AMAZON, "P@5", "λ .01, λ 0", (41.9, 38.71), RAE | {"lambda": 0.01}, LABELS),
    Claim("Table 8", AMAZON, "P@1", "λ .5, λ 0", (57.98, 49.41), RAE, LABELS),
    Claim("Table 8", AMAZON, "P@1", "λ .5, λ 1", (57.98, 51.93), RAE, INSTANCES),
    Claim("Table 8", AMAZON, "P@5", "λ .5, λ 1", (46.39, 41.61), RAE, INSTANCES),
    Claim("Fig. 3", AMAZON, "P@5", "b 200, 10", (), RAE, RAE | {"top_b": 10}),
]

# ---- DEXML (Gupta et al., 2024) ----

IN_BATCH = DEXML | {"hard_negatives": 0}
HARD_1, HARD_10 = (DEXML | {"hard_negatives": count, "mine_top": 100} for count in (1, 10))
SOFTMAX: Setting = {"method": "infonce", "hard_negatives": "all", "positives": 0}
SOFTMAX_10 = SOFTMAX | {"hard_negatives": 10, "mine_top": 100}
# SoftTop-k learns more slowly. As in the released code, a step draws at most k labels of a query.
LONG: Setting = {"max_steps": 300, "batch_size": 64}
SOFT_TOP_5, SOFT_TOP_100 = (LONG | {"method": "softtopk", "softtopk_k": k, "positives": k} for k in (5, 100))
DEXML_LONG = LONG | DEXML
BCE: Setting = {"method": "bce"}
OVA: Setting = {"method": "ova"}
EASY: Setting = {"sample": "easy label", "batch_size": 256, "max_steps": 32}
PAIRS: Setting = {"sample": "random pairs", "batch_size": 64, "max_steps": 350}
# Random texts need easy negatives first: an untrained encoder gives all texts one vector if it starts with hard ones.
PAIRS_HARD = PAIRS | DEXML | {"hard_negatives": 2, "mine_from": 2}

DEXML_CLAIMS = [
    Claim("Table 3", AMAZON, "P@1", "1 hard negative, 0", (49.16, 42.15), HARD_1, IN_BATCH),
    Claim("Table 3", AMAZON, "P@1", "10 hard negatives, 1", (54.01, 49.16), HARD_10, HARD_1),
    Claim("Table 3", AMAZON, "P@1", "all negatives, 10 hard", (58.4, 54.01), DEXML, HARD_10),
    Claim("Table 4", EURLEX, "P@1", "decoupled softmax, BCE", (86.78, 0.1), DEXML, BCE),
    Claim("Table 4", EURLEX, "P@1", "decoupled softmax, softmax", (86.78, 80.05), DEXML, SOFTMAX),
    Claim("Table 4", EURLEX, "P@5", "decoupled softmax, softmax", (60.19, 58.36), DEXML, SOFTMAX),
    Claim("Table 4", EURLEX, "R@100", "softmax, decoupled softmax", (92.57, 91.75), SOFTMAX, DEXML),
    Claim("Table 4", EURLEX, "P@5", "SoftTop-5, decoupled softmax", (60.95, 60.19), SOFT_TOP_5, DEXML_LONG),
    Claim("Table 4", EURLEX, "P@1", "decoupled softmax, SoftTop-5", (86.78, 83.42), DEXML_LONG, SOFT_TOP_5),
    Claim("Table 4", EURLEX, "R@100", "SoftTop-100, decoupled softmax", (93.72, 91.75), SOFT_TOP_100, DEXML_LONG),
    Claim("Table 12", AMAZON, "P@1", "decoupled softmax, softmax (10 hard)", (54.01, 51.19), HARD_10, SOFTMAX_10),
    Claim("Table 1", AMAZON, "PSP@5", "DEXML, OvA classifier", (36.58, 25.91), DEXML, OVA),
    Claim("Fig. 7", AMAZON, "P@5 decile 10", "DEXML, OvA classifier", (), DEXML, OVA),
    Claim("Fig. 7", AMAZON, "P@5 decile 1", "all negatives, in-batch", (), DEXML, IN_BATCH),
    Claim("Fig. 2", TOKENS, "P@1", "decoupled softmax, softmax", (100, 20), EASY | DEXML, EASY | SOFTMAX),
    Claim("C.1", TOKENS, "P@1", "hard negatives, in-batch", (99.93, 81.21), PAIRS_HARD, PAIRS | IN_BATCH),
]

# ---- PRIME (Dahiya et al., 2025) ----

LITE: Setting = {"method": "prime", "positives": 1}
# Table 6, from bottom to top: each row lacks one more term of the loss.
NO_REGULARISER = LITE | {"regulariser_weight": 0}
NO_LABEL_LOSS = NO_REGULARISER | {"symmetric": False}
NO_MARGIN = NO_LABEL_LOSS | {"margin": (0.3, 0.3)}
NO_TEXT = NO_MARGIN | {"text_loss": False}
NO_BANK = LITE | {"prototype": ["text", "centroid"]}
SMALL_BANK = LITE | {"bank": 8}
PRIME = LITE | {"positives": 2, "batch_size": 256}
UNIFORM = LITE | {"positive_sampling": "uniform"}
EARLY = LITE | {"max_steps": 20}
EARLY_NO_CENTROIDS = EARLY | {"prototype": ["text", "free"]}

PRIME_CLAIMS = [
    Claim("Table 6", AMAZON, "P@1", "loss of label texts, none", (56.34, 51.71), NO_MARGIN, NO_TEXT),
    Claim("Table 6", AMAZON, "PSP@1", "loss of label texts, none", (31.23, 26.27), NO_MARGIN, NO_TEXT),
    Claim("Table 6", AMAZON, "P@1", "dynamic margin, fixed", (57.4, 56.34), NO_LABEL_LOSS, NO_MARGIN),
    Claim("Table 6", AMAZON, "R@100", "dynamic margin, fixed", (62.3, 60.79), NO_LABEL_LOSS, NO_MARGIN),
    Claim("Table 6", AMAZON, "P@1", "label-to-query loss, none", (58.25, 57.4), NO_REGULARISER, NO_LABEL_LOSS),
    Claim("Table 6", AMAZON, "PSP@1", "label-to-query loss, none", (30.83, 29.69), NO_REGULARISER, NO_LABEL_LOSS),
    Claim("Table 6", AMAZON, "PSP@1", "regulariser, none", (31.68, 30.83), LITE, NO_REGULARISER),
    Claim("Table 6", AMAZON, "R@100", "regulariser, none", (63.45, 62.78), LITE, NO_REGULARISER),
    Claim("Table 6", AMAZON, "P@1", "PRIME, PRIME-lite", (58.58, 58.1), PRIME, LITE),
    Claim("Table 9", AMAZON, "P@1", "free vectors, none", (58.1, 57.0), LITE, NO_BANK),
    Claim("Table 9", AMAZON, "P@1", "many free vectors, few", (58.1, 57.09), LITE, SMALL_BANK),
    Claim("Table 11", AMAZON, "P@1", "positives by propensity, uniform", (58.1, 57.48), LITE, UNIFORM),
    Claim("Table 11", AMAZON, "PSP@1", "positives by propensity, uniform", (31.68, 29.65), LITE, UNIFORM),
    Claim("Fig. 3", "not named", "P@1", "centroids, none (after 20 steps)", (), EARLY, EARLY_NO_CENTROIDS),
]

# ---- UniDEC (Kharbanda et al., 2024) ----

MINED: Setting = {"hard_negatives": 6, "mine_top": 30}
# Half as many dimensions for a view as the encoder has, as on two of the three datasets of the paper.
PROJECTED: Setting = {"positives": 1, "projection": 32}
NOT_MINED = PROJECTED | {"method": "unidec", "classifier_norm": False, "hard_negatives": 0}
UNIDEC = NOT_MINED | MINED
ENCODER, CLASSIFIER = UNIDEC | {"view": "dual encoder"}, UNIDEC | {"view": "classifier"}
ONE_POSITIVE = PROJECTED | MINED | {"method": "supcon"}
FOUR_POSITIVES = ONE_POSITIVE | {"positives": 4}
EQUAL_POOL = DEXML | MINED | {"positives": 1}

UNIDEC_CLAIMS = [
    Claim("Table 5", AMAZON, "P@1", "both views, dual encoder", (53.79, 47.49), UNIDEC, ENCODER),
    Claim("Table 5", AMAZON, "P@1", "both views, classifier", (53.79, 46.26), UNIDEC, CLASSIFIER),
    Claim("Table 5", AMAZON, "PSP@5", "both views, dual encoder", (37.96, 34.02), UNIDEC, ENCODER),
    Claim("Table 5", AMAZON, "PSP@5", "both views, classifier", (37.96, 34.44), UNIDEC, CLASSIFIER),
    Claim("Table 5", AMAZON, "P@1", "hard negatives, none", (53.79, 48.36), UNIDEC, NOT_MINED),
    Claim("Table 5", AMAZON, "PSP@1", "no hard negatives, some", (34.03, 32.19), NOT_MINED, UNIDEC),
    Claim("Table 6", AMAZON, "P@1", "SupconDE with 1 positive, 4", (51.03, 50.31), ONE_POSITIVE, FOUR_POSITIVES),
    Claim("Table 6", AMAZON, "PSP@5", "SupconDE with 4 positives, 1", (35.92, 35.25), FOUR_POSITIVES, ONE_POSITIVE),
    Claim("Table 2", AMAZON, "P@1", "SupconDE, DEXML (equal pools)", (51.03, 42.15), ONE_POSITIVE, EQUAL_POOL),
]

PAPERS = {"RAE-XMC": RAE_XMC, "DEXML": DEXML_CLAIMS, "PRIME": PRIME_CLAIMS, "UniDEC": UNIDEC_CLAIMS}
