"""The claims of the papers, in the order of the page.

A claim imports its measurement when it runs, so that the page is written without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.proofs.claim import Check, Claim, Figures


def _measure(module: str, function: str) -> Callable[[Path | None, Path, int], Figures]:
    def measure(folder: Path | None, work: Path, seed: int) -> Figures:
        figures: Figures = getattr(importlib.import_module(f"benchmarks.proofs.{module}"), function)(folder, work, seed)
        return figures

    return measure


_RAE = (
    Claim(
        name="frozen",
        source="RAE-XMC, Table 5: the memory lifts frozen encoders",
        summary="The memory of instances and labels raises P@1 of encoders that are not trained.",
        conditions="λ = 0.5 against λ = 0, τ = 0.04, b = 200. MiniLM, and its token vectors (`--encoder static`).",
        measure=_measure("frozen", "measure_frozen"),
        checks=(
            Check(
                "the memory lifts a frozen sentence encoder",
                "MiniLM, memory",
                "MiniLM, labels alone",
                "GTE-base, LF-AmazonTitles-1.3M: 47.03 > 27.16",
            ),
            Check(
                "the memory lifts a weaker frozen encoder",
                "token vectors, memory",
                "token vectors, labels alone",
                "DistilBERT, LF-AmazonTitles-1.3M: 35.59 > 21.40",
            ),
        ),
    ),
    Claim(
        name="lambda",
        source="RAE-XMC, Tables 4 and 8: lambda",
        summary="Instances and labels together are better than either alone.",
        conditions="P@1 of a static encoder trained with `rae`; λ in steps of 0.1, τ = 0.04, b = 200. *Best* is the "
        "best λ on the test texts, as in the table of the paper.",
        measure=_measure("frozen", "measure_lambda"),
        checks=(
            Check("some λ beats labels alone", "best lambda between", "labels alone", "58.60 (λ = .7) > 49.72"),
            Check("some λ beats instances alone", "best lambda between", "instances alone", "58.60 (λ = .7) > 53.98"),
            Check("λ = .5, the default, beats labels alone", "lambda 0.5", "labels alone", "58.48 > 49.72"),
            Check("λ = .5, the default, beats instances alone", "lambda 0.5", "instances alone", "58.48 > 53.98"),
        ),
    ),
    Claim(
        name="time",
        source="RAE-XMC, Figure 2: quality against training time",
        summary="With its memory, RAE-XMC reaches the quality of DEXML in less training time.",
        conditions="P@1 of `rae` with λ = 0.5, and of `dexml` with label keys alone, as in its paper. A static "
        "encoder is trained. The time is that of the processor.",
        measure=_measure("training_time", "measure_time"),
        checks=(
            Check("`rae` is as good after equal steps", "rae 60 steps", "dexml 60 steps", "58.48 > 58.40"),
            Check(
                "its training takes less time",
                "dexml 60 steps, CPU s",
                "rae 60 steps, CPU s",
                "66 h × 16 A100 > 7.4 h × 8",
            ),
            Check("a third of the steps of `rae` is enough", "rae 20 steps", "dexml 60 steps"),
        ),
    ),
    Claim(
        name="ova",
        source="RAE-XMC, Equation 11: OvA + kNN",
        summary="The votes of instances lift a one-versus-all classifier.",
        conditions="P@1 of a static encoder trained with `ova`: its sigmoid, the votes of instances, and the mean of "
        "both (λ = 0.5). The equation of the paper could not be read here: classifier and votes are normalised apart.",
        measure=_measure("ova_knn", "measure_ova"),
        checks=(
            Check("the votes lift the classifier", "OvA + kNN", "OvA"),
            Check("the classifier lifts the votes", "OvA + kNN", "kNN"),
        ),
    ),
)

_DEXML = (
    Claim(
        name="decoupled",
        source="DEXML, section 4.1 and Figure 2: decoupled softmax",
        summary="With softmax, the positives of a query compete. With decoupled softmax they do not.",
        conditions="P@1 on 200 test texts, with 300 training queries, 600 labels, and an encoder of one layer with 64 "
        "dimensions. The paper has 1,000 queries and 5,000 labels. The check *it beats softmax* was added after the "
        "figures were seen.",
        measure=_measure("decoupled", "measure_losses"),
        checks=(
            Check("decoupled softmax learns the marker", "decoupled softmax", 95, "100"),
            Check("it beats softmax", "decoupled softmax", "softmax", "100 > about 20"),
            Check("softmax does not learn the marker", 50, "softmax", "about 20"),
        ),
        uses_data=False,
    ),
    Claim(
        name="memorise",
        source="DEXML, appendix C.1: memorising random pairs",
        summary="A dual encoder can memorise pairs of random texts.",
        conditions="P@1 on the training pairs, with 16 random tokens in each text and an encoder of one layer with 64 "
        "dimensions. The 4,000 pairs are trained with the labels of a batch of 500 as the pool.",
        measure=_measure("memorise", "measure_pairs"),
        checks=(
            Check("1,000 pairs are memorised", "P@1 of 1,000 pairs", 99.9, "all pairs"),
            Check("4,000 pairs are memorised", "P@1 of 4,000 pairs", 99.9, "all pairs"),
        ),
        uses_data=False,
    ),
)

_ABLATIONS = (
    Claim(
        name="prime",
        source="PRIME, Table 6: ablation",
        summary="Each part of a label's prototype raises the quality of PRIME.",
        conditions="nDCG@5 with label keys alone (λ = 0), of static encoders trained with equal steps.",
        measure=_measure("ablations", "measure_prime"),
        checks=(
            Check("prototypes are better than label texts", "PRIME", "text alone"),
            Check("free vectors help", "PRIME", "without free vectors"),
            Check("centroids help", "PRIME", "without centroids"),
        ),
    ),
    Claim(
        name="unidec",
        source="UniDEC, Table 5: ablation",
        summary="Dual encoder and classifier together are better than either, and several positives better than one.",
        conditions="nDCG@5 with label keys alone (λ = 0), of static encoders trained with equal steps. *View* is one "
        "half of the keys of the same training; *dual encoder alone* is a training with `supcon`.",
        measure=_measure("ablations", "measure_unidec"),
        checks=(
            Check("both views are better than the dual encoder's", "UniDEC", "view: dual encoder"),
            Check("both views are better than the classifier's", "UniDEC", "view: classifier"),
            Check("better than a dual encoder trained alone", "UniDEC", "dual encoder alone"),
            Check("several positives are better than one", "UniDEC", "one positive"),
            Check("PAL-N is better than PAL", "UniDEC", "PAL", "worse without 1 / N"),
        ),
    ),
)

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*_RAE, *_DEXML, *_ABLATIONS)}
