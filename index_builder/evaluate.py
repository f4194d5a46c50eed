"""`recollect evaluate`: measure a bundle on a test split with the code of the service, one row for each setting."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int
from scipy import sparse
from tqdm import tqdm

from index_builder.errors import BuildError
from index_builder.settings import EvaluateSettings
from service.bundle.bundle import LabelTable
from service.model import open_model
from service.predictor.predictor import Predictor
from service.predictor.scoring import Ranking, Votes, cast_votes, rank
from service.predictor.searcher import Neighbours, Searcher, search_parts
from service.predictor.words import mix
from trainer.data.dataset import open_dataset
from trainer.data.split import Entries, Split
from trainer.metrics import report

# Number of labels to predict for each query: R@100 needs 100.
_DEPTH = 100
_BLOCK_QUERIES = 256


@dataclass(frozen=True)
class Setting:
    """The options with which one row of the result is measured."""

    lambda_: float
    temperature: float
    top_b: int
    word_weight: float = 0.0

    def to_dict(self, with_words: bool) -> dict[str, float]:
        fields = {"lambda": self.lambda_, "temperature": self.temperature, "top_b": self.top_b}
        return fields | ({"word_weight": self.word_weight} if with_words else {})


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation. Each row has a setting and its metrics in percent; an undefined metric is None."""

    version: str
    queries: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class GroundTruth:
    """True labels of the test texts, as positions in the bundle's list of labels.

    Labels that the bundle does not contain have positions after the bundle's last label.
    """

    relevance: sparse.csr_matrix
    label_counts: Int[np.ndarray, " label"]
    filtered_codes: Int[np.ndarray, " pair"]

    @property
    def labels(self) -> int:
        return len(self.label_counts)


def evaluate(settings: EvaluateSettings) -> Evaluation:
    """Measure a bundle with every combination of the given lambdas, temperatures and numbers of keys.

    Raises:
        StoreError, BundleError: If the version cannot be opened.
        KeyFileError: If the public key cannot be read.
        DatasetError: If the dataset is invalid.
        BuildError: If the bundle has none of the dataset's labels, or `--word-weight` needs a lexical index.
    """
    predictor = open_model(
        settings.store, settings.version, settings.verify_key, settings.bundle_cache, settings.threads
    ).predictor
    dataset = open_dataset(settings.dataset, settings.format)
    test = dataset.read_split("test")
    test = test.head(settings.limit) if settings.limit else test
    truth = align_labels(dataset.labels, test, predictor.bundle.labels, settings.dataset)
    grid = _grid(settings, predictor)
    predictions = predict_top(predictor, test, truth, grid)
    instances = predictor.manifest.counts.instances
    rows = [
        setting.to_dict(predictor.words is not None)
        | dict[str, Any](report(found, truth.relevance, truth.label_counts, instances, settings.propensity))
        for setting, found in zip(grid, predictions, strict=True)
    ]
    return Evaluation(predictor.version, len(test), rows)


def default_metrics(predictor: Predictor, folder: Path) -> dict[str, float]:
    """Measure a bundle with its default options on a test split, in percent. Undefined metrics are left out."""
    dataset = open_dataset(folder, "auto")
    test = dataset.read_split("test")
    truth = align_labels(dataset.labels, test, predictor.bundle.labels, folder)
    defaults = predictor.manifest.defaults
    setting = Setting(defaults.lambda_, defaults.temperature, defaults.top_b, defaults.word_weight)
    (found,) = predict_top(predictor, test, truth, [setting])
    metrics = report(found, truth.relevance, truth.label_counts, predictor.manifest.counts.instances)
    return {name: value for name, value in metrics.items() if value is not None}


def align_labels(labels: Entries, test: Split, known: LabelTable, where: Path) -> GroundTruth:
    """Match the labels of a test split with the labels of a bundle by uid.

    Args:
        labels: Labels of the dataset.
        test: The test split.
        known: Labels of the bundle.
        where: The dataset folder, for error messages.

    Raises:
        BuildError: If the bundle has none of the labels.
    """
    known_uids = pa.array((known.uids[position] for position in range(len(known))), type=pa.large_string())
    positions = pc.index_in(labels.uids, value_set=known_uids).fill_null(-1).to_numpy().astype(np.int64)
    unknown = positions < 0
    if unknown.all():
        raise BuildError(
            f"{where}: expected at least one label of the bundle, found none; evaluate a bundle of this dataset"
        )
    positions[unknown] = len(known) + np.arange(unknown.sum())
    total = len(known) + int(unknown.sum())
    counts = np.concatenate([known.counts, np.zeros(unknown.sum(), dtype=known.counts.dtype)])
    ones = np.ones(len(test.labels.indices), dtype=bool)
    relevance = sparse.csr_matrix((ones, positions[test.labels.indices], test.labels.indptr), shape=(len(test), total))
    rows, columns = test.filtered_pairs.T
    return GroundTruth(relevance, counts, np.sort(rows * np.int64(total) + positions[columns]))


def predict_top(
    predictor: Predictor, test: Split, truth: GroundTruth, grid: list[Setting]
) -> list[Int[np.ndarray, "query 100"]]:
    """Predict the top 100 labels of every test text with each setting; -1 pads short lists.

    Each text is encoded once. Each index is searched once for each number of keys, because neither lambda nor the
    temperature changes the keys that an index finds.
    """
    predictions = [np.full((len(test), _DEPTH), -1, dtype=np.int32) for _ in grid]
    with tqdm(total=len(test), unit="query", unit_scale=True, desc="evaluate", dynamic_ncols=True) as bar:
        for start in range(0, len(test), _BLOCK_QUERIES):
            texts = test.entries.texts[start : start + _BLOCK_QUERIES].to_pylist()
            vectors, vote_by_words = predictor.encode(texts), _vote_once(predictor, texts)
            search = _search_once(predictor.searcher, vectors)
            for setting, rows in zip(grid, predictions, strict=True):
                found = search(setting.top_b, setting.lambda_)
                votes = cast_votes(found, setting.temperature, setting.lambda_, predictor.values)
                if setting.word_weight:
                    votes = mix(votes, vote_by_words(setting.lambda_), setting.word_weight)
                ranking = rank(votes, predictor.values)
                rows[start : start + len(vectors)] = _best_allowed(ranking, len(vectors), start, truth)
            bar.update(len(vectors))
    return predictions


def _search_once(searcher: Searcher, vectors: Float[np.ndarray, "query dim"]) -> Callable[[int, float], Neighbours]:
    """Return a search function for these vectors that searches each index only once for each number of keys.

    The function merges the keys of both indexes for a lambda as the service does.
    """
    instances = functools.cache(functools.partial(searcher.instances.search, vectors))
    labels = functools.cache(functools.partial(searcher.labels.search, vectors))

    def search(top_b: int, lambda_: float) -> Neighbours:
        return search_parts(
            lambda _, top_b: instances(top_b),
            lambda _, top_b: labels(top_b),
            searcher.instances.keys,
            vectors,
            top_b,
            lambda_,
        )

    return search


def _vote_once(predictor: Predictor, texts: list[str]) -> Callable[[float], Votes]:
    """Return a function that gives the votes by words for a lambda, and computes them only once for each lambda."""
    words = predictor.words

    @functools.cache
    def vote(lambda_: float) -> Votes:
        assert words is not None, "`_grid` refuses a word weight without a lexical index"
        return words.votes(texts, lambda_)

    return vote


def best_labels(
    query: Int[np.ndarray, " row"], label: Int[np.ndarray, " row"], queries: int
) -> Int[np.ndarray, "query 100"]:
    """The best 100 labels of each query in a ranking; -1 pads short lists.

    Args:
        query: Query number of each row of the ranking, in ascending order.
        label: Label of each row. The rows of a query are in descending order of score.
        queries: Number of queries.
    """
    labels = np.full((queries, _DEPTH), -1, dtype=np.int32)
    place = np.arange(len(query)) - np.searchsorted(query, query)
    best = place < _DEPTH
    labels[query[best], place[best]] = label[best]
    return labels


def _best_allowed(ranking: Ranking, queries: int, first_query: int, truth: GroundTruth) -> Int[np.ndarray, "query 100"]:
    """The best 100 labels of each query. Filtered labels are removed first, so 100 other labels remain."""
    codes = (ranking.query + first_query) * np.int64(truth.labels) + ranking.label
    kept = ~np.isin(codes, truth.filtered_codes)
    return best_labels(ranking.query[kept], ranking.label[kept], queries)


def _grid(settings: EvaluateSettings, predictor: Predictor) -> list[Setting]:
    defaults = predictor.manifest.defaults
    if any(settings.word_weight) and predictor.words is None:
        raise BuildError(
            f"--word-weight: version {predictor.version} has no lexical index; build one with "
            "`recollect build --lexical on`"
        )
    return [
        Setting(*each)
        for each in itertools.product(
            settings.lambda_ or [defaults.lambda_],
            settings.temperature or [defaults.temperature],
            settings.top_b or [defaults.top_b],
            settings.word_weight or [defaults.word_weight],
        )
    ]


def format_table(evaluation: Evaluation) -> Iterator[str]:
    """Format the result rows as aligned lines. The headings are short, so that the lines fit a terminal."""
    short = {
        "temperature": "tau",
        "top_b": "b",
        "word_weight": "words",
        "F1@5 extreme tail": "xtail",
        "F1@5 torso": "torso",
        "F1@5 tail": "tail",
    }
    cells = [[short.get(name, name) for name in evaluation.rows[0]]]
    cells += [[_format_cell(name, value) for name, value in row.items()] for row in evaluation.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _format_cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if name in ("lambda", "temperature", "top_b", "word_weight") else f"{value:.2f}"
