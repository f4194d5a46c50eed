"""Write the lexical index of a bundle, and choose the weight of its votes on left-out instances.

The queries are those of `recollect tune`: instances that the training held out. Each query is left out of the memory.
The weight with the highest mean nDCG@5 wins. Noise can make a useless weight look better, so `--lexical auto` keeps the
index only if the gain is at least two standard errors of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.core.bundle.files import LEXICAL_FILES
from recollect.core.scoring import vote
from recollect.core.system.console import print_status
from recollect.core.words.index import LexicalIndex, write_lexical_index
from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.index_builder.left_out_votes import default_voting, left_out_votes, without_filtered
from recollect.index_builder.settings import Lexical
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.left_out import MORE_HELD_OUT, choose_queries
from recollect.trainer.memory.memory import Memory
from recollect.trainer.metrics import PairedGain, hits, ndcg_at

_WEIGHTS = (0.05, 0.1, 0.25, 0.5)
_QUERIES, _SEED = 1_000, 0
_DEPTH = 5


@dataclass(frozen=True)
class WordGain:
    """The gain of votes by words over the votes of the vectors alone, in percent of nDCG@5."""

    weight: float  # above 0, with the highest mean nDCG@5
    before: float
    after: float
    error: float  # standard error of the mean of the differences
    queries: int

    @property
    def certain(self) -> bool:
        return PairedGain(self.after - self.before, self.error).exceeds(errors=2)

    def __str__(self) -> str:
        return (
            f"word_weight {self.weight:g}: nDCG@5 {self.before:.2f} -> {self.after:.2f} (standard error of the gain "
            f"{self.error:.2f}) on {self.queries:,} left-out instances"
        )


def write_lexical(memory: Memory, folder: Path, run: Path, lexical: Lexical) -> tuple[float, dict[str, float]]:
    """Write the lexical index into a bundle folder, unless `lexical` is off, or is auto and the index gains nothing.

    Return the weight of the votes by words, and measurements for the manifest.
    """
    if lexical == "off":
        return 0.0, {}
    instances, labels = (read_field(memory.folder / f"{part}.jsonl", "text") for part in ("instances", "labels"))
    write_lexical_index(folder, instances, labels)
    try:
        gain = measure_gain(memory, folder, run)
    except TrainingError as error:
        print_status(f"lexical: no votes by words, because {error}")
        return _without_gain(folder, lexical), {}
    print_status(f"lexical: {gain}; {_decision(lexical, gain)}")
    measured = {"nDCG@5_gain_words": gain.after - gain.before}
    if np.isfinite(gain.error):  # a single query has no standard error
        measured["nDCG@5_gain_words_error"] = gain.error
    if gain.certain:
        return gain.weight, measured
    return _without_gain(folder, lexical), measured


def _decision(lexical: Lexical, gain: WordGain) -> str:
    if gain.certain:
        return "kept"
    return "kept with word_weight 0" if lexical == "on" else "not kept: the gain is less than two standard errors"


def _without_gain(folder: Path, lexical: Lexical) -> float:
    """Remove the index if `--lexical auto` was given; return the weight 0."""
    if lexical == "auto":
        for name in LEXICAL_FILES:
            (folder / name).unlink()
    return 0.0


def measure_gain(memory: Memory, folder: Path, run: Path) -> WordGain:
    """Measure each weight on left-out instances with the memory's default options, and choose the best one."""
    values = memory.values
    rows = choose_queries(memory, run, _QUERIES, _SEED)
    if len(rows) == 0:
        raise TrainingError(f"no instance with labels was held out; {MORE_HELD_OUT}")
    index = LexicalIndex.open(folder, memory.plan.instances, memory.plan.labels)
    scores = {weight: np.empty(len(rows)) for weight in (0.0, *_WEIGHTS)}
    truth, filtered = (sets.to_csr(memory.plan.labels)[rows] for sets in (memory.label_sets, memory.filtered_labels))
    for block, found in left_out_votes(memory, rows, index):
        for weight, score in scores.items():
            votes = vote(found, default_voting(memory, weight), values).scores
            ranking = votes.where(without_filtered(filtered[block], votes)).best(_DEPTH)
            best = pick(ranking.label, best_rows(ranking.query, len(score[block])), -1)
            hit = hits(best[:, :_DEPTH], truth[block])
            score[block] = ndcg_at(hit, np.diff(truth[block].indptr), _DEPTH)
    chosen = max(_WEIGHTS, key=lambda weight: (scores[weight].mean(), -weight))
    before, after = 100 * scores[0.0], 100 * scores[chosen]
    error = PairedGain.of(before, after).error
    return WordGain(chosen, float(before.mean()), float(after.mean()), error, len(rows))
