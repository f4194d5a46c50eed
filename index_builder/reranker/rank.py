"""`recollect rank`: fit the ranker of a memory, and keep it if it ranks held-out texts better than the votes.

The examples are instances that the training held out. It has moved the other instances towards their labels, so their
features would promise too much. If the run is not trained, all instances are alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.core.reranker.candidates import CLASSIFIER
from recollect.core.system.console import print_status
from recollect.core.system.threads import threads_or_cores
from recollect.index_builder.errors import NothingToRank
from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.reranker.artefact import write_ranker
from recollect.index_builder.reranker.calibrate import HeldOut
from recollect.index_builder.reranker.classifier import MOST_INSTANCES, fit_classifier
from recollect.index_builder.reranker.examples import Examples, ExampleSource
from recollect.index_builder.reranker.fit import SHAPES, Shape, cross_fitted_logits, fit_ranker
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
# Queries are few if there are so many times as many instances.
_FEW = 5


@dataclass(frozen=True)
class RankerFit:
    """The result of fitting a ranker."""

    kept: bool  # whether the memory has the ranker now
    metric: RankerGain  # the metric that decides
    gains: list[RankerGain]  # of all metrics
    segments: list[RankerGain]  # of the recall at 5, by the frequency of labels
    queries: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "metric": self.metric.name,
            "queries": self.queries,
            "seconds": self.seconds,
            "gains": [vars(gain) for gain in self.gains],
            "recall@5_by_frequency": [vars(gain) for gain in self.segments],
        }

    def table(self) -> list[str]:
        """The lines of a table of the gains, and whether the ranker is kept."""
        metric = self.metric
        gain = f"{metric.name} gains {metric.ranker - metric.votes:+.2f} (standard error {metric.error:.2f})"
        decision = "the ranker is kept" if self.kept else "less than two standard errors: the votes stay in use"
        lines = format_gains(self.gains, self.segments)
        return [f"{self.queries:,} left-out queries, in percent", *lines, f"{gain}; {decision}"]


def rank_run(settings: RankSettings, held_out: HeldOutTexts | None = None) -> RankerFit:
    """Fit the ranker of a run, measure it on texts that took no part in its fit, and keep it if it helps.
    The queries are the held-out instances, or a part of them.

    Raises:
        MemoryFolderError: If the run has no finished memory.
        NothingToRank: If too few instances with labels are held out.
        BuildError: If the memory's texts are damaged.
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
    truth = memory.relevance[rows]
    judge = Judge(truth, memory.label_counts, memory.plan.instances, settings.propensity)
    rankings = [_CrossFit.of(examples, fold, shape, threads) for shape in SHAPES]
    best = max(rankings, key=lambda ranking: judge.mean(settings.metric, ranking.labels))
    kept_classifier = None
    if settings.classifier == "auto" and memory.plan.instances <= MOST_INSTANCES:
        # Without all queries, if few instances are queries; otherwise without those of a fold.
        groups = np.zeros_like(fold) if len(rows) * _FEW <= memory.plan.instances else fold
        scores = np.empty(len(examples.query), dtype=np.float32)
        for number in np.unique(groups):
            classifier = fit_classifier(memory, source.texts, rows[groups == number], threads)
            own = (groups == number)[examples.query]
            scores[own] = source.classifier_scores(classifier, rows, examples)[own]
        wider = _CrossFit.of(examples.with_feature(CLASSIFIER, scores), fold, best.shape, threads)
        gain = judge.gain(settings.metric, best.labels, wider.labels)
        print_status(
            f"linear classifiers: {gain.name} {gain.ranker - gain.votes:+.2f} (standard error {gain.error:.2f})"
        )
        if gain.certain:
            best = wider
            kept_classifier = fit_classifier(memory, source.texts, rows[:0], threads)
    votes = pick(examples.label, best_candidates(examples.query, examples.score, len(rows)), -1)
    gains = [judge.gain(name, votes, best.labels) for name in METRICS]
    metric = judge.gain(settings.metric, votes, best.labels)
    held_out_logits = HeldOut(best.logits, hits(best.labels, truth), np.diff(truth.indptr))
    ranker = fit_ranker(best.examples, best.shape, threads) if metric.certain else None
    result = RankerFit(
        kept=ranker is not None,
        metric=metric,
        gains=gains,
        segments=[judge.gain(name, votes, best.labels) for name in judge.segments()],
        queries=len(rows),
        seconds=time.perf_counter() - start,
    )
    write_ranker(memory, ranker, kept_classifier, held_out_logits, result.as_json())
    return result


@dataclass(frozen=True)
class _CrossFit:
    """The candidates of all queries in the order of rankers that were fitted without the folds of the queries."""

    examples: Examples
    shape: Shape
    labels: Int[np.ndarray, "query 100"]  # best first; -1 pads short lists
    logits: Float[np.ndarray, "query 100"]

    @classmethod
    def of(cls, examples: Examples, fold: Int[np.ndarray, " query"], shape: Shape, threads: int) -> _CrossFit:
        logits = cross_fitted_logits(examples, fold, shape, threads)
        best = best_candidates(examples.query, logits, len(fold))
        return cls(examples, shape, pick(examples.label, best, -1), pick(logits, best, -np.inf))
