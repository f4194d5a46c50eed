"""Quality of a bundle on a test split, through the very code that serves; one row a setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int
from scipy import sparse
from tqdm import tqdm

from index_builder.errors import BuildError
from index_builder.settings import EvaluateSettings
from service.bundle.bundle import LabelTable
from service.predictor.predictor import Predictor
from service.predictor.scoring import Ranking, cast_votes, rank
from service.predictor.searcher import Neighbours
from service.store.locations import open_store
from service.threads import threads_or_cores
from trainer.data.dataset import Entries, Split
from trainer.data.formats import open_dataset
from trainer.metrics import report

# As far as the metrics look: R@100.
_DEPTH = 100
_BLOCK_QUERIES = 256


@dataclass(frozen=True)
class Setting:
    """One way to answer."""

    lambda_: float
    temperature: float
    top_b: int


@dataclass(frozen=True)
class Evaluation:
    """What was measured: a row holds a setting and its metrics in percent, None where a metric is undefined."""

    version: str
    queries: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Truth:
    """The test split in the bundle's label positions; labels that the bundle lacks come after all of its own."""

    relevance: sparse.csr_matrix
    label_counts: Int[np.ndarray, " label"]
    filtered_codes: Int[np.ndarray, " pair"]

    @property
    def labels(self) -> int:
        return len(self.label_counts)


def evaluate(settings: EvaluateSettings) -> Evaluation:
    """Measure every combination of the settings' lambdas, temperatures and numbers of keys.

    Raises:
        StoreError, BundleError: If the version cannot be opened.
        KeyFileError: If the key that it must be signed for cannot be read.
        DatasetError: If the dataset breaks its contract.
        BuildError: If the bundle knows none of the dataset's labels.
    """
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    version = store.resolve(settings.version)
    predictor = Predictor.open(store.open(version), threads_or_cores(settings.threads))
    dataset = open_dataset(settings.dataset, settings.format)
    test = dataset.read_split("test")
    test = test.head(settings.limit) if settings.limit else test
    truth = align(dataset.labels, test, predictor.bundle.labels, settings.dataset)
    grid = _grid(settings, predictor)
    predictions = predict_top(predictor, test, truth, grid)
    instances = predictor.manifest.counts.instances
    rows = [
        {"lambda": setting.lambda_, "temperature": setting.temperature, "top_b": setting.top_b}
        | dict[str, Any](report(found, truth.relevance, truth.label_counts, instances, settings.propensity))
        for setting, found in zip(grid, predictions, strict=True)
    ]
    return Evaluation(version, len(test), rows)


def quality(predictor: Predictor, folder: Path) -> dict[str, float]:
    """A predictor's metrics on a dataset's test split, by its own defaults, in percent; undefined ones left out."""
    dataset = open_dataset(folder, "auto")
    test = dataset.read_split("test")
    truth = align(dataset.labels, test, predictor.bundle.labels, folder)
    defaults = predictor.manifest.defaults
    setting = Setting(defaults.lambda_, defaults.temperature, defaults.top_b)
    (found,) = predict_top(predictor, test, truth, [setting])
    metrics = report(found, truth.relevance, truth.label_counts, predictor.manifest.counts.instances)
    return {name: value for name, value in metrics.items() if value is not None}


def align(labels: Entries, test: Split, known: LabelTable, where: Path) -> Truth:
    """Express a test split in a bundle's label positions, matching labels by uid."""
    known_uids = pa.array((known.uids[position] for position in range(len(known))), type=pa.large_string())
    positions = pc.index_in(labels.uids, value_set=known_uids).fill_null(-1).to_numpy().astype(np.int64)
    unknown = positions < 0
    if unknown.all():
        raise BuildError(f"{where}: expected labels that the bundle knows, found none of its uids there")
    positions[unknown] = len(known) + np.arange(unknown.sum())
    total = len(known) + int(unknown.sum())
    counts = np.concatenate([known.counts, np.zeros(unknown.sum(), dtype=known.counts.dtype)])
    ones = np.ones(len(test.labels.indices), dtype=bool)
    relevance = sparse.csr_matrix((ones, positions[test.labels.indices], test.labels.indptr), shape=(len(test), total))
    rows, columns = test.filtered_pairs.T
    return Truth(relevance, counts, np.sort(rows * np.int64(total) + positions[columns]))


def predict_top(
    predictor: Predictor, test: Split, truth: Truth, grid: list[Setting]
) -> list[Int[np.ndarray, "query 100"]]:
    """The top 100 labels of every test text under each setting, -1 where there are fewer.

    A text is encoded once, and searched once for all settings that search the same part of the memory as far.
    """
    predictions = [np.full((len(test), _DEPTH), -1, dtype=np.int32) for _ in grid]
    with tqdm(total=len(test), unit="query", unit_scale=True, desc="evaluate", dynamic_ncols=True) as bar:
        for start in range(0, len(test), _BLOCK_QUERIES):
            vectors = predictor.encode(test.entries.texts[start : start + _BLOCK_QUERIES].to_pylist())
            found: dict[tuple[float, int], Neighbours] = {}
            for setting, rows in zip(grid, predictions, strict=True):
                part = setting.lambda_ if setting.lambda_ in (0, 1) else 0.5  # all between the ends search alike
                key = (part, setting.top_b)
                if key not in found:
                    found[key] = predictor.searcher.search(vectors, setting.top_b, part)
                votes = cast_votes(found[key], setting.temperature, setting.lambda_, predictor.values)
                ranking = rank(votes, predictor.values)
                rows[start : start + len(vectors)] = _admitted(ranking, len(vectors), start, truth)
            bar.update(len(vectors))
    return predictions


def best_labels(
    query: Int[np.ndarray, " row"], label: Int[np.ndarray, " row"], queries: int
) -> Int[np.ndarray, "query 100"]:
    """Each query's first 100 labels of a ranking, -1 where there are fewer."""
    labels = np.full((queries, _DEPTH), -1, dtype=np.int32)
    place = np.arange(len(query)) - np.searchsorted(query, query)
    best = place < _DEPTH
    labels[query[best], place[best]] = label[best]
    return labels


def _admitted(ranking: Ranking, queries: int, first_query: int, truth: Truth) -> Int[np.ndarray, "query 100"]:
    """Each query's best labels, those filtered for it left out before the cut (never zeroed)."""
    codes = (ranking.query + first_query) * np.int64(truth.labels) + ranking.label
    kept = ~np.isin(codes, truth.filtered_codes)
    return best_labels(ranking.query[kept], ranking.label[kept], queries)


def _grid(settings: EvaluateSettings, predictor: Predictor) -> list[Setting]:
    defaults = predictor.manifest.defaults
    return [
        Setting(*each)
        for each in itertools.product(
            settings.lambda_ or [defaults.lambda_],
            settings.temperature or [defaults.temperature],
            settings.top_b or [defaults.top_b],
        )
    ]


def table(evaluation: Evaluation) -> Iterator[str]:
    """The rows as aligned lines, under headings short enough for a terminal."""
    short = {
        "temperature": "tau",
        "top_b": "b",
        "F1@5 extreme tail": "xtail",
        "F1@5 torso": "torso",
        "F1@5 tail": "tail",
    }
    cells = [[short.get(name, name) for name in evaluation.rows[0]]]
    cells += [[_cell(name, value) for name, value in row.items()] for row in evaluation.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if name in ("lambda", "temperature", "top_b") else f"{value:.2f}"
