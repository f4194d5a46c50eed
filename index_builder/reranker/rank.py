"""`recollect rank`: fit the ranker of a memory, and keep it if it ranks held-out texts better than the votes.

The examples are instances that the training held out. It has moved the other instances towards their labels, so their
features would promise too much. If the run is not trained, all instances are alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from recollect.core.reranker.classifier import Classifier
from recollect.core.reranker.model import RankerFile
from recollect.core.system.console import print_status
from recollect.core.system.threads import threads_or_cores
from recollect.index_builder.errors import NothingToRank
from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.reranker.artefact import write_ranker
from recollect.index_builder.reranker.calibrate import fit_probabilities, is_reliable
from recollect.index_builder.reranker.classifier import MOST_INSTANCES
from recollect.index_builder.reranker.examples import Examples, ExampleSource
from recollect.index_builder.reranker.fit import SHAPES, CrossFitted, fit_ranker
from recollect.index_builder.reranker.gains import METRICS, Judge, RankerGain, best_candidates, format_gains
from recollect.index_builder.reranker.orders import MAX_LOSS, MostProbable, OrderChoice, choose_order
from recollect.index_builder.settings import RankSettings
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.left_out import MORE_HELD_OUT, choose_queries
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.randomness import Purpose, generator

if TYPE_CHECKING:  # it needs torch
    from recollect.index_builder.reranker.cross_rank import CrossFit, ScoreSource

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
    choice: OrderChoice  # the default order, and the weight of macro
    cross: CrossGain | None = None  # None without --cross-encoder, and if the ranker is not kept

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            **self.choice._asdict(),
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
        lines = [f"{self.queries:,} left-out queries, in percent", *lines, f"{gain}; {decision}"]
        if not self.kept:
            return lines
        return [*lines, self._order_line(), *([] if self.cross is None else self.cross.table())]

    def _order_line(self) -> str:
        """The default order, with its reason, and the weight of macro."""
        order, weight = self.choice
        tail = next(gain for gain in self.gains if gain.name == "PSP@1")
        lost = f"PSP@1 of probability is {tail.votes - tail.ranker:.2f} below that of the votes"
        reason = "" if order == "probability" else f", because {lost} (limit {MAX_LOSS:g})"
        return f"default order: {order}{reason}; tail_weight of macro: {'none' if weight is None else f'{weight:g}'}"


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
    """Fit the ranker of a run, measure it on texts that its trees did not see, and keep it if it helps.

    The queries are the held-out instances, or a part of them. They also choose the shape of the trees and the default
    order.

    Raises:
        MemoryFolderError: If the run has no finished memory.
        NothingToRank: If too few instances with labels are held out, or are left for a cross-encoder.
        BuildError: If the memory's texts are damaged, or there is no encoder from which a cross-encoder can start.
        EncoderError, EncoderDownError: If that encoder cannot be read, or the reranker's server does not answer.
    """
    start, threads = time.perf_counter(), threads_or_cores(settings.threads)
    memory = open_memory(settings.run / "memory")
    rows = choose_queries(memory, settings.run, settings.queries, settings.seed, held_out)
    if len(rows) < MIN_QUERIES:
        raise NothingToRank(
            f"{settings.run}: a ranker needs at least {MIN_QUERIES} instances with labels that the training held "
            f"out, found {len(rows)}; {MORE_HELD_OUT}"
        )
    scores = _open_score_source(settings)
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
    best, classifier = _choose_ranking(settings, source, examples, rows, fold, judge)
    votes = pick(examples.label, best_candidates(examples.query, examples.score, len(rows)), -1)
    metric = judge.gain(settings.metric, votes, best.labels)
    held_out_logits = best.held_out(truth)
    ranker = fit_ranker(best.examples, best.shape, threads) if metric.certain else None
    fitted = fit_probabilities(held_out_logits)
    most_probable = None
    if fitted is not None and is_reliable(fitted):
        most_probable = MostProbable.of(best.labels, best.counts, held_out_logits, fitted)
    cross, cross_gain = None, None
    if ranker is not None and scores is not None:
        cross, cross_gain = _fit_cross(memory, settings, scores, source, rows, best, ranker, judge)
    choice = OrderChoice("score", None)
    if ranker is not None:
        choice = choose_order(judge, settings.metric, votes, best.labels, most_probable, truth)
    macro = None
    if most_probable is not None and choice.tail_weight is not None:
        macro = most_probable.by_macro(choice.tail_weight)
    result = RankerFit(
        kept=ranker is not None,
        metric=metric,
        gains=[judge.gain(name, votes, best.labels, macro) for name in METRICS],
        segments=[judge.gain(name, votes, best.labels, macro) for name in judge.segments()],
        queries=len(rows),
        seconds=time.perf_counter() - start,
        choice=choice,
        cross=cross_gain,
    )
    write_ranker(memory, ranker, classifier, held_out_logits, result.as_json(), cross)
    return result


def _open_score_source(settings: RankSettings) -> ScoreSource | None:
    """Where the second ranker gets its scores from; None if the settings ask for no second ranker."""
    if not settings.cross_encoder and settings.reranker is None:
        return None
    from recollect.index_builder.reranker.cross_rank import open_score_source  # with torch

    return open_score_source(settings)


def _fit_cross(
    memory: Memory,
    settings: RankSettings,
    scores: ScoreSource,
    source: ExampleSource,
    rows: Int[np.ndarray, " query"],
    best: CrossFitted,
    ranker: RankerFile,
    judge: Judge,
) -> tuple[CrossFit | None, CrossGain]:
    """Fit the second ranker, and measure it against the first one; None instead of it if it does not help."""
    from recollect.index_builder.reranker.cross_rank import FirstRanker, fit_cross_ranker  # with torch

    first = FirstRanker(source, rows, best, ranker)
    second = fit_cross_ranker(memory, settings, scores, first, threads_or_cores(settings.threads))
    gain = judge.gain(settings.metric, best.labels, second.fitted.labels)
    gains = [judge.gain(name, best.labels, second.fitted.labels) for name in METRICS]
    return second if gain.certain else None, CrossGain(gain.certain, gain, gains, second.texts)


def _choose_ranking(
    settings: RankSettings,
    source: ExampleSource,
    examples: Examples,
    rows: Int[np.ndarray, " query"],
    fold: Int[np.ndarray, " query"],
    judge: Judge,
) -> tuple[CrossFitted, Classifier | None]:
    """Choose the shape of the trees, and whether linear classifiers are a feature; return those of all instances."""
    threads = threads_or_cores(settings.threads)
    rankings = [CrossFitted.of(examples, fold, shape, threads) for shape in SHAPES]
    best = max(rankings, key=lambda ranking: judge.mean(settings.metric, ranking.labels))
    if settings.classifier == "off" or len(source.texts) > MOST_INSTANCES:
        return best, None
    wider = CrossFitted.of(source.with_classifiers(examples, rows, fold, threads), fold, best.shape, threads)
    gain = judge.gain(settings.metric, best.labels, wider.labels)
    gained = f"{gain.name} {gain.ranker - gain.votes:+.2f} (standard error {gain.error:.2f})"
    print_status(f"linear classifiers of words: {gained}; {'kept' if gain.certain else 'left out'}")
    return (wider, source.fit_classifier(rows[:0], threads)) if gain.certain else (best, None)
