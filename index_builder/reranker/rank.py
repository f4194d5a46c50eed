"""`recollect rank`: fit the ranker of a memory, and keep it if it ranks held-out texts better than the votes.

The examples are instances that the training held out. It has moved the other instances towards their labels, so their
features would promise too much. If the run is not trained, all instances are alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import sparse

from recollect.core.system.console import print_status
from recollect.core.system.threads import threads_or_cores
from recollect.index_builder.errors import NothingToRank
from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.reranker.artefact import write_ranker
from recollect.index_builder.reranker.calibrate import HeldOut
from recollect.index_builder.reranker.examples import Examples, ExampleSource
from recollect.index_builder.reranker.fit import cross_fitted_logits, fit_ranker
from recollect.index_builder.reranker.gains import METRICS, Judge, RankerGain, best_candidates, format_gains
from recollect.index_builder.settings import RankSettings
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.left_out import MORE_HELD_OUT, choose_queries
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.metrics import hits
from recollect.trainer.randomness import Purpose, generator

# With fewer queries, no ranker is fitted.
MIN_QUERIES = 100
_FOLDS = 3


@dataclass(frozen=True)
class RankerFit:
    """The result of fitting a ranker."""

    kept: bool  # whether the memory has the ranker now
    metric: RankerGain  # the metric that decides
    gains: list[RankerGain]  # of all metrics
    segments: list[RankerGain]  # of the recall at 5, by the frequency of labels
    queries: int
    seconds: float
    cross: CrossGain | None = None  # None without --cross-encoder, and if the ranker is not kept

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "metric": self.metric.name,
            "queries": self.queries,
            "seconds": self.seconds,
            "gains": [vars(gain) for gain in self.gains],
            "recall@5_by_frequency": [vars(gain) for gain in self.segments],
            **({} if self.cross is None else {"cross_encoder": self.cross.as_json()}),
        }

    def table(self) -> list[str]:
        """The lines of a table of the gains, and whether the ranker is kept."""
        metric = self.metric
        gain = f"{metric.name} gains {metric.ranker - metric.votes:+.2f} (standard error {metric.error:.2f})"
        decision = "the ranker is kept" if self.kept else "less than two standard errors: the votes stay in use"
        lines = format_gains(self.gains, self.segments)
        table = [f"{self.queries:,} left-out queries, in percent", *lines, f"{gain}; {decision}"]
        return table + ([] if self.cross is None else self.cross.table())


@dataclass(frozen=True)
class CrossGain:
    """The gain of the second ranker, which also reads a cross-encoder, over the first."""

    kept: bool
    metric: RankerGain
    gains: list[RankerGain]
    texts: int  # from which the cross-encoder learnt; 0 for a reranker on a server

    def as_json(self) -> dict[str, Any]:
        return {"kept": self.kept, "texts": self.texts, "gains": [vars(gain) for gain in self.gains]}

    def table(self) -> list[str]:
        metric = self.metric
        gain = f"{metric.name} gains {metric.ranker - metric.votes:+.2f} (standard error {metric.error:.2f})"
        name = "cross-encoder" if self.texts else "reranker"
        decision = f"the {name} is kept" if self.kept else f"less than two standard errors: the {name} is not kept"
        lines = format_gains(self.gains, [], ("without", "with"))
        learnt = f"with a cross-encoder, which learnt from {self.texts:,} other texts"
        return ["", learnt if self.texts else "with the reranker", *lines, f"{gain}; {decision}"]


def rank_run(settings: RankSettings, held_out: HeldOutTexts | None = None) -> RankerFit:
    """Fit the ranker of a run, measure it on texts that took no part in its fit, and keep it if it helps.
    The queries are the held-out instances, or a part of them.

    Raises:
        MemoryFolderError: If the run has no finished memory.
        NothingToRank: If too few instances with labels are held out, or are left for a cross-encoder.
        BuildError: If the memory's texts are damaged, or there is no encoder from which a cross-encoder can start.
    """
    start, threads = time.perf_counter(), threads_or_cores(settings.threads)
    memory = open_memory(settings.run / "memory")
    rows = choose_queries(memory, settings.run, settings.queries, settings.seed, held_out)
    if len(rows) < MIN_QUERIES:
        raise NothingToRank(
            f"{settings.run}: a ranker needs at least {MIN_QUERIES} instances with labels that the training held "
            f"out, found {len(rows)}; {MORE_HELD_OUT}"
        )
    fold = generator(settings.seed, Purpose.TUNING).permutation(len(rows)) % _FOLDS
    source = ExampleSource(memory, settings.lexical == "on")
    examples = source.cross(rows, fold)
    if not examples.true.any():
        raise NothingToRank(
            f"{memory.folder}: expected true labels among the candidates, found none; train the run first"
        )
    print_status(f"fit: {len(examples.query):,} candidates of {len(rows):,} queries")
    logits = cross_fitted_logits(examples, fold, threads)
    by_votes, by_ranker = (best_candidates(examples.query, order, len(rows)) for order in (examples.score, logits))
    truth = memory.relevance[rows]
    judge = Judge(truth, memory.label_counts, memory.plan.instances, settings.propensity)
    votes, ranked = (pick(examples.label, best, -1) for best in (by_votes, by_ranker))
    gains = [judge.gain(name, votes, ranked) for name in METRICS]
    metric = judge.gain(settings.metric, votes, ranked)
    kept_logits = held_out_logits(examples, logits, len(rows), truth)
    ranker = fit_ranker(examples, threads) if metric.certain else None
    cross, cross_gain = None, None
    if ranker is not None and (settings.cross_encoder or settings.reranker is not None):
        from recollect.index_builder.reranker.cross_rank import FirstRanker, fit_cross_ranker  # with torch

        first = FirstRanker(source, examples, rows, fold, logits, ranker)
        fitted = fit_cross_ranker(memory, settings, first, threads)
        second = pick(examples.label, best_candidates(examples.query, fitted.logits, len(rows)), -1)
        gain = judge.gain(settings.metric, ranked, second)
        by_name = [judge.gain(name, ranked, second) for name in METRICS]
        cross_gain = CrossGain(gain.certain, gain, by_name, fitted.texts)
        cross = (fitted, held_out_logits(examples, fitted.logits, len(rows), truth)) if gain.certain else None
    result = RankerFit(
        kept=ranker is not None,
        metric=metric,
        gains=gains,
        segments=[judge.gain(name, votes, ranked) for name in judge.segments()],
        queries=len(rows),
        seconds=time.perf_counter() - start,
        cross=cross_gain,
    )
    write_ranker(memory, ranker, kept_logits, result.as_json(), cross)
    return result


def held_out_logits(
    examples: Examples, logits: Float[np.ndarray, " candidate"], queries: int, truth: sparse.csr_matrix
) -> HeldOut:
    """The best candidates of each query by cross-fitted logits, for the calibration."""
    best = best_candidates(examples.query, logits, queries)
    true = hits(pick(examples.label, best, -1), truth)
    return HeldOut(pick(logits, best, -np.inf), true, np.diff(truth.indptr))
