"""Write the lexical index of a bundle, and choose the weight of its votes on left-out instances.

The queries are those of `recollect tune`: held-out instances, or all instances if training held out none. Each query is
left out of the memory. The weight with the highest mean nDCG@5 wins. Noise can make a useless weight look better, so
`--lexical auto` keeps the index only if the gain is at least two standard errors of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from index_builder.bundle_tables import read_field
from index_builder.console import print_status
from index_builder.evaluate import best_labels
from index_builder.settings import Lexical
from service.bundle.files import LEXICAL_FILES
from service.lexical.index import LexicalIndex, write_lexical_index
from service.predictor.scoring import Values, cast_votes, rank
from service.predictor.searcher import Neighbours, search_parts
from service.predictor.words import mix, word_votes
from trainer.errors import TrainingError
from trainer.left_out import choose_queries, instance_neighbours, label_neighbours
from trainer.memory import Memory
from trainer.metrics import hits, ndcg_at

_WEIGHTS = (0.05, 0.1, 0.25, 0.5)
_QUERIES, _BLOCK_QUERIES, _SEED = 1_000, 256, 0
# Number of keys to find by words for each query: more than the keys that vote, because one is the query itself.
_SEARCHED = 64
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Gain:
    """The gain of votes by words over the votes of the vectors alone, in percent of nDCG@5.

    Attributes:
        weight: The weight with the highest mean nDCG@5, above 0.
        before: nDCG@5 with weight 0.
        after: nDCG@5 with this weight.
        error: Standard error of the mean of the differences.
        queries: Number of queries.
    """

    weight: float
    before: float
    after: float
    error: float
    queries: int

    @property
    def certain(self) -> bool:
        return self.after - self.before > max(0.0, _STANDARD_ERRORS * self.error)

    def __str__(self) -> str:
        return (
            f"word_weight {self.weight:g}: nDCG@5 {self.before:.2f} -> {self.after:.2f} (standard error of the gain "
            f"{self.error:.2f}) on {self.queries:,} left-out instances"
        )


def write_lexical(memory: Memory, folder: Path, run: Path, lexical: Lexical) -> tuple[float, dict[str, float]]:
    """Write the lexical index into a bundle folder, unless `lexical` is off, or is auto and the index gains nothing.

    Returns:
        The weight of the votes by words, and measurements for the manifest.

    Raises:
        BuildError: If the memory's texts are damaged.
    """
    if lexical == "off":
        return 0.0, {}
    instances, labels = (read_field(memory.folder / f"{part}.jsonl", "text") for part in ("instances", "labels"))
    write_lexical_index(folder, instances, labels)
    try:
        gain = measure_gain(memory, folder, run)
    except TrainingError:  # no instance has a label
        print_status("lexical: no instance has a label, so there is nothing to tune the word weight on")
        return _without_gain(folder, lexical), {}
    print_status(f"lexical: {gain}; {_decision(lexical, gain)}")
    measured = {"nDCG@5_gain_words": gain.after - gain.before, "nDCG@5_gain_words_error": gain.error}
    if gain.certain:
        return gain.weight, measured
    return _without_gain(folder, lexical), measured


def _decision(lexical: Lexical, gain: Gain) -> str:
    if gain.certain:
        return "kept"
    return "kept with word_weight 0" if lexical == "on" else "not kept: the gain is less than two standard errors"


def _without_gain(folder: Path, lexical: Lexical) -> float:
    """Remove the index if `--lexical auto` was given; return the weight 0."""
    if lexical == "auto":
        for name in LEXICAL_FILES:
            (folder / name).unlink()
    return 0.0


def measure_gain(memory: Memory, folder: Path, run: Path) -> Gain:
    """Measure each weight on left-out instances with the memory's default options, and choose the best one.

    Raises:
        TrainingError: If no instance has a label.
    """
    rows, trained_on = choose_queries(memory, run, _QUERIES, _SEED)
    if trained_on:
        print_status(
            f"lexical: {run} held out no instances, so the word weight is tuned on training instances, for which the "
            "vectors are too good; train with a --validation-fraction above 0"
        )
    found, texts = _nearest_keys(memory, rows), _texts_of(memory, rows)
    index = LexicalIndex.open(folder, memory.plan.instances, memory.plan.labels)
    scores = {weight: np.empty(len(rows)) for weight in (0.0, *_WEIGHTS)}
    lambda_, temperature = memory.defaults["lambda"], memory.defaults["temperature"]
    values = Values(memory.value_indptr, memory.value_indices, memory.plan.labels)
    truth = memory.label_sets.to_csr(memory.plan.labels)[rows]
    for start in range(0, len(rows), _BLOCK_QUERIES):
        block = slice(start, start + _BLOCK_QUERIES)
        nearest = Neighbours(found.similarities[block], found.keys[block])
        votes = cast_votes(nearest, temperature, lambda_, values)
        by_words = _leave_out(Neighbours(*index.search(texts[block], _SEARCHED, lambda_)), rows[block])
        votes_by_words = word_votes(by_words, lambda_, values)
        for weight, score in scores.items():
            ranking = rank(mix(votes, votes_by_words, weight) if weight else votes, values)
            hit = hits(best_labels(ranking.query, ranking.label, len(nearest.keys))[:, :5], truth[block])
            score[block] = ndcg_at(hit, np.diff(truth[block].indptr), 5)
    best = max(_WEIGHTS, key=lambda weight: (scores[weight].mean(), -weight))
    return _gain(best, scores[0.0], scores[best])


def _gain(weight: float, before: Float[np.ndarray, " query"], after: Float[np.ndarray, " query"]) -> Gain:
    differences = after - before
    error = float(differences.std(ddof=1) / np.sqrt(len(differences))) if len(differences) > 1 else np.inf
    return Gain(weight, 100 * float(before.mean()), 100 * float(after.mean()), 100 * error, len(differences))


def _nearest_keys(memory: Memory, rows: Int[np.ndarray, " query"]) -> Neighbours:
    """The top-b keys of the queries with the memory's default options, without the queries themselves."""
    defaults, top_b = memory.defaults, int(memory.defaults["top_b"])

    def search_instances(_: np.ndarray, top_b: int) -> Neighbours:
        found = instance_neighbours(memory, rows, top_b)
        return Neighbours(found.similarities, found.keys)

    def search_labels(_: np.ndarray, top_b: int) -> Neighbours:
        found = label_neighbours(memory, rows, defaults["label_key_alpha"], top_b)
        return Neighbours(found.similarities, found.keys)

    vectors = np.asarray(memory.keys[rows], dtype=np.float32)
    return search_parts(search_instances, search_labels, memory.plan.instances, vectors, top_b, defaults["lambda"])


def _texts_of(memory: Memory, rows: Int[np.ndarray, " query"]) -> list[str]:
    wanted = set(rows.tolist())
    texts = read_field(memory.folder / "instances.jsonl", "text")
    return [text for row, text in enumerate(texts) if row in wanted]


def _leave_out(found: Neighbours, rows: Int[np.ndarray, " query"]) -> Neighbours:
    """The found keys without the query's own key, which moves to the end as a missing key."""
    own = found.keys == rows[:, None]
    order = np.argsort(own, axis=1, kind="stable")
    similarities, keys = np.where(own, -np.inf, found.similarities), np.where(own, -1, found.keys)
    return Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))
