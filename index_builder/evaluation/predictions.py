"""The best labels of each test text, predicted with the code of the service: one prediction for each setting."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int, Shaped
from scipy import sparse

from recollect.core.answers import Stopwatch
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.manifest import Defaults, Order
from recollect.core.options import AnswerOptions
from recollect.core.predictor import Predictor
from recollect.core.rank import Queries, RankedLabels, rank
from recollect.core.scoring import ScoredLabels, weigh
from recollect.core.system.console import print_status, progress_bar
from recollect.core.words.terms import Words
from recollect.index_builder.errors import BuildError
from recollect.index_builder.evaluation.deciles import DECILES, count_sources
from recollect.index_builder.evaluation.probabilities import JudgedProbabilities
from recollect.index_builder.left_out_votes import without_filtered
from recollect.trainer.data.dataset import Dataset
from recollect.trainer.data.split import Split
from recollect.trainer.metrics import hits

# The best labels of some queries, the score of the first one, and their probabilities.
_Best = tuple[Int[np.ndarray, "query 100"], Float[np.ndarray, " query"], Float[np.ndarray, "query 100"] | None]

Memories = Literal["joint", "separate"]

# Number of labels to predict for each query: R@100 needs 100.
_DEPTH = 100
_BLOCK_QUERIES = 256


@dataclass(frozen=True)
class Setting:
    """The options with which one row of the result is measured.

    `memories` states whether one softmax covers both kinds of keys, as in the service, or each kind has its own
    (RAE-XMC, Eq. 5 and 11).
    """

    lambda_: float
    temperature: float
    top_b: int
    word_weight: float
    order: Order
    memories: Memories = "joint"
    tail_weight: float | None = None

    @classmethod
    def default(cls, predictor: Predictor) -> Setting:
        """The default options of a bundle."""
        defaults = predictor.manifest.defaults
        votes = defaults.lambda_, defaults.temperature, defaults.top_b, defaults.word_weight
        return cls(*votes, defaults.order).by(defaults.order, defaults)

    def by(self, order: Order, defaults: Defaults) -> Setting:
        """The setting with another order; that of macro has the weight of the bundle."""
        return dataclasses.replace(self, order=order, tail_weight=defaults.tail_weight if order == "macro" else None)

    def options(self) -> AnswerOptions:
        votes = self.lambda_, self.temperature, self.top_b
        return AnswerOptions(
            *votes, _DEPTH, word_weight=self.word_weight, order=self.order, tail_weight=self.tail_weight
        )

    def to_dict(self, hidden: Collection[str]) -> dict[str, float | str]:
        """The fields, by the names of the flags, without the hidden ones."""
        return {name.rstrip("_"): value for name, value in vars(self).items() if name not in hidden}


@dataclass(frozen=True)
class Predictions:
    """The best 100 labels of each test text."""

    labels: Int[np.ndarray, "query 100"]  # best first; -1 pads short lists
    hit: Bool[np.ndarray, "query 100"]  # marks the true labels among them
    sizes: Int[np.ndarray, " query"]  # number of true labels
    first_scores: Float[np.ndarray, " query"]  # of the first label; 0 without one
    probabilities: Float[np.ndarray, "query 100"] | None  # 0 for the padding
    # Number of retrieved keys that vote for a true label of each decile, in the order of `DECILES`.
    sources: Int[np.ndarray, "grouping source decile"]

    @classmethod
    def of(
        cls,
        blocks: Sequence[_Best],
        sources: Sequence[Int[np.ndarray, "grouping source decile"]],
        truth: sparse.csr_matrix,
    ) -> Predictions:
        best, first_scores, probabilities = zip(*blocks, strict=True)
        labels = np.concatenate(best)
        whole = None if probabilities[0] is None else np.concatenate(probabilities)
        scores, sizes = np.concatenate(first_scores), np.diff(truth.indptr)
        return cls(labels, hits(labels, truth), sizes, scores, whole, np.sum(sources, axis=0))

    @functools.cached_property
    def judged(self) -> JudgedProbabilities | None:
        """The probabilities and their truth; None without probabilities."""
        return None if self.probabilities is None else JudgedProbabilities(self.probabilities, self.hit, self.sizes)


@dataclass(frozen=True)
class GroundTruth:
    """True labels of the test texts, and labels `filtered` that are removed from their answers.

    Both have the axes (query, label), with positions in the bundle's list of labels. Labels that the bundle does not
    contain have positions after the bundle's last label.
    """

    relevance: sparse.csr_matrix
    filtered: sparse.csr_matrix
    positions: Int[np.ndarray, " dataset_label"]  # of each label of the dataset
    label_counts: Int[np.ndarray, " label"]  # number of training texts
    instances: int

    @property
    def labels(self) -> int:
        return len(self.label_counts)

    @functools.cached_property
    def deciles(self) -> dict[str, Int[np.ndarray, " label"]]:
        """The decile of each label, in each way to form deciles."""
        return {name: form(self.label_counts) for name, form in DECILES.items()}

    def most_frequent(self) -> Int[np.ndarray, "query top_k"]:
        """For each text, up to 100 labels with the most training texts, without its filtered labels."""
        removed = np.diff(self.filtered.indptr)
        frequent = np.argsort(-self.label_counts, kind="stable")[: _DEPTH + removed.max(initial=0)]
        labels = np.tile(frequent[:_DEPTH], (len(removed), 1))
        for text in np.flatnonzero(removed):
            own = frequent[~np.isin(frequent, self.filtered[[text]].indices)][:_DEPTH]
            labels[text] = np.append(own, np.full(labels.shape[1] - len(own), -1))
        return labels

    def limits(self) -> dict[str, float]:
        """The mean and the highest number of true labels of a text, and the best possible P@5 in percent."""
        sizes = self.relevance.getnnz(axis=1)
        return {
            "labels": float(sizes.mean()),
            "most": int(sizes.max()),
            "P@5": float(100 * np.minimum(sizes, 5).mean() / 5),
        }

    def translate(self, labels: Int[np.ndarray, "query top_k"], to: GroundTruth) -> Int[np.ndarray, "query top_k"]:
        """The positions of labels in the ground truth of another bundle; -1 for labels that the dataset lacks."""
        positions = np.full(self.labels, -1)
        positions[self.positions] = to.positions
        return np.asarray(pick(positions, labels, -1))


def align_labels(dataset: Dataset, test: Split, bundle: Bundle) -> GroundTruth:
    """Match the labels of a test split with the labels of a bundle by uid; a `BuildError` if the bundle has none."""
    labels, known = dataset.labels, bundle.labels
    known_uids = pa.array((known.uids[position] for position in range(len(known))), type=pa.large_string())
    positions = pc.index_in(labels.uids, value_set=known_uids).fill_null(-1).to_numpy().astype(np.int64)
    unknown = positions < 0
    if unknown.all():
        raise BuildError(
            f"{dataset.folder}: expected at least one label of the bundle, found none; evaluate a bundle of this "
            "dataset"
        )
    _compare_texts(dataset, bundle, positions)
    positions[unknown] = len(known) + np.arange(unknown.sum())
    total = len(known) + int(unknown.sum())
    counts = np.concatenate([known.counts, np.zeros(unknown.sum(), dtype=known.counts.dtype)])
    ones = np.ones(len(test.labels.indices), dtype=bool)
    relevance = sparse.csr_matrix((ones, positions[test.labels.indices], test.labels.indptr), shape=(len(test), total))
    rows, columns = test.filtered_pairs.T
    filtered = sparse.csr_matrix((np.ones(len(rows), dtype=bool), (rows, positions[columns])), shape=relevance.shape)
    return GroundTruth(relevance, filtered, positions, counts, bundle.manifest.counts.instances)


def _compare_texts(dataset: Dataset, bundle: Bundle, positions: Int[np.ndarray, " label"]) -> None:
    """Report the number of shared labels whose texts differ; the positions of labels that are not shared are -1.

    If the uids are row numbers, and the texts show that these numbers mean other labels in the bundle, it is an error.
    """
    labels, texts_of_bundle = dataset.labels, bundle.labels.texts
    known = pa.array((texts_of_bundle[row] for row in range(len(texts_of_bundle))), type=pa.large_string())
    shared = np.flatnonzero(positions >= 0)
    here, there = labels.texts.take(pa.array(shared)), known.take(pa.array(positions[shared]))
    changed = pc.not_equal(here, there)
    count = pc.sum(changed).as_py()
    if not count:
        return
    row = pc.index(changed, True).as_py()
    found = (
        f"another text of {count:,} of {len(shared):,} labels in version {bundle.manifest.version}, for example of "
        f"{labels.uids[int(shared[row])].as_py()!r}: {here[row].as_py()[:60]!r} here, {there[row].as_py()[:60]!r} there"
    )
    is_other_order = count == len(shared) or pc.any(pc.is_in(here.filter(changed), value_set=known)).as_py()
    if dataset.is_numbered and is_other_order:
        raise BuildError(
            f"{dataset.folder}: the uids of labels are row numbers: expected the labels in the order of the version, "
            f"found {found}; use the file of labels with which the version was trained"
        )
    print_status(f"{dataset.folder}: found {found}")


def predict_top(predictor: Predictor, test: Split, truth: GroundTruth, grid: list[Setting]) -> list[Predictions]:
    """Predict the top 100 labels of every test text with each setting.

    Each text is encoded once. Each index is searched once for each number of keys, because neither lambda nor the
    temperature changes the keys that an index finds. With the default options, a cross-encoder reads the texts if the
    bundle says so.
    """
    predictions: list[list[_Best]] = [[] for _ in grid]
    sources: list[list[Int[np.ndarray, "grouping source decile"]]] = [[] for _ in grid]
    memory, usual = predictor.memory, Setting.default(predictor)
    with progress_bar(len(test), "query", "evaluate") as bar:
        for start in range(0, len(test), _BLOCK_QUERIES):
            texts = test.entries.texts[start : start + _BLOCK_QUERIES].to_pylist()
            words = Words.of(texts)
            queries = Queries(predictor.encode(texts), words, texts)
            by_words = None if memory.words is None else memory.words.search(words)
            search_once = functools.cache(functools.partial(memory.searcher.search, queries.vectors))
            block = slice(start, start + len(texts))
            relevance, keeps = truth.relevance[block], functools.partial(without_filtered, truth.filtered[block])
            for setting, blocks, counts in zip(grid, predictions, sources, strict=True):
                keys_found = dataclasses.replace(search_once(setting.top_b), by_words=by_words)
                options, separate = setting.options(), setting.memories == "separate"
                if setting == usual:
                    options = dataclasses.replace(options, rerank=predictor.defaults.rerank)
                by_vectors = options.voting._replace(word_weight=0.0, separate=separate)
                keys = weigh(keys_found, by_vectors, memory.values)
                counts.append(count_sources(keys, memory.values, relevance, truth.deciles.values()))
                ranked = rank(memory, queries, keys_found, options, Stopwatch(), keeps=keeps, separate=separate)
                if options.rerank:
                    _require_reranked(ranked, len(texts))
                # Calibration knows no scores of separate memories.
                blocks.append(_best(ranked.ranking, None if separate else ranked.probabilities, len(texts)))
            bar.update(len(texts))
    return [
        Predictions.of(blocks, counts, truth.relevance) for blocks, counts in zip(predictions, sources, strict=True)
    ]


def _require_reranked(ranked: RankedLabels, queries: int) -> None:
    """Raise `BuildError` if a reranker on a server gave no scores: the metrics would be those of two rankers."""
    if missing := sum(ranked.left_out(query) is not None for query in range(queries)):
        raise BuildError(
            f"RECOLLECT_RERANKER: expected the scores of {queries:,} texts, found none for {missing:,}; set it to a "
            "reranker that answers, set a larger RECOLLECT_RERANKER_MS, or evaluate a version built without --rerank"
        )


def best_rows(query: Int[np.ndarray, " row"], queries: int) -> Int[np.ndarray, "query 100"]:
    """The rows of the best 100 labels of each query in a ranking; -1 pads short lists.

    The rows of a ranking are in ascending order of their queries, those of a query best first.
    """
    rows = np.full((queries, _DEPTH), -1, dtype=np.int64)
    place = np.arange(len(query)) - np.searchsorted(query, query)
    best = np.flatnonzero(place < _DEPTH)
    rows[query[best], place[best]] = best
    return rows


def pick(
    column: Shaped[np.ndarray, " row"], rows: Int[np.ndarray, "query 100"], missing: float
) -> Shaped[np.ndarray, "query 100"]:
    """The values of rows that `best_rows` found, and `missing` for the padding."""
    return np.asarray(np.append(column, np.array(missing, dtype=column.dtype))[rows])  # -1 picks the last value


def _best(ranking: ScoredLabels, probabilities: Float[np.ndarray, " row"] | None, queries: int) -> _Best:
    rows = best_rows(ranking.query, queries)
    chances = None if probabilities is None else pick(probabilities, rows, 0.0)
    return pick(ranking.label, rows, -1), pick(ranking.score, rows[:, :1], 0.0)[:, 0], chances
