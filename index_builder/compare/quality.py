"""Quality of a run on the test queries, by exact search over its memory, without a bundle.

A run is measured with its tuned settings, then at each lambda of a curve, then with its label keys alone (lambda = 0
and alpha = 0), which makes it a plain dual encoder, then in the order of its ranker, if it has one. The file
`quality.json` in the run folder caches the figures, together with a digest of all inputs that affect the figures.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.compare.queries import Queries
from recollect.index_builder.ranking.artefact import has_ranker, read_ranker
from recollect.index_builder.ranking.ranked_labels import ranked_labels
from recollect.service.files import write_json
from recollect.service.ranking.model import RankerFile
from recollect.trainer.memory.inference import InferenceSetting, Neighbours, predict
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.memory.search import nearest
from recollect.trainer.metrics import hits, ndcg_at, precision_at, report
from recollect.trainer.progress_bar import with_progress

# Number of labels to predict for each query: 100 for R@100. The scores of single queries need only five.
DEPTH, _TOP = 100, 5
# Lambdas of the curve, in addition to the tuned lambda.
_LAMBDAS = tuple(round(0.1 * step, 1) for step in range(11))
_BLOCK_QUERIES = 8_192
# Format of the cached figures. Raise it when the measurement changes: old files are then ignored.
_FORMAT_VERSION = 4

Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Quality:
    """Quality of a run, in percent.

    Attributes:
        answering: The tuned lambda, temperature, top_b and label_key_alpha.
        tuned: Every metric, with the tuned settings.
        plain: Every metric, with the label keys alone.
        views: Every metric, with one view of the label keys alone: `dual encoder` and `classifier` for `unidec`, empty
            for a method whose keys have one view.
        ranked: Every metric, in the order of the run's ranker; None if the run has no ranker.
        curve: P@1 and nDCG@5 at each lambda, with the tuned temperature, top_b and alpha.
        hits: One byte for each query. Its first five bits stand for the five best labels; 1 means a true label.
    """

    answering: dict[str, float]
    tuned: Metrics
    plain: Metrics
    views: dict[str, Metrics]
    ranked: Metrics | None
    curve: list[dict[str, float]]
    hits: list[int]

    def scores(self, sizes: Int[np.ndarray, " query"]) -> dict[str, Float[np.ndarray, " query"]]:
        """P@1, P@3, P@5 and nDCG@5 of every query, as fractions.

        Args:
            sizes: Number of true labels of each query.
        """
        bits = np.array(self.hits, dtype=np.uint8)[:, None]
        hit = np.unpackbits(bits, axis=1, count=_TOP).astype(bool)
        return {f"P@{k}": precision_at(hit, k) for k in (1, 3, _TOP)} | {f"nDCG@{_TOP}": ndcg_at(hit, sizes, _TOP)}


def measure(run: Path, queries: Queries, device: str, with_ranker: bool = True) -> Quality:
    """Measure a run on the test queries, or read the cached figures.

    Args:
        run: The run folder, with checkpoint and memory.
        queries: The test queries.
        device: Device that encodes and searches.
        with_ranker: Whether to measure the order of the run's ranker too, if it has one.

    Raises:
        MemoryFolderError, EncoderError: If the run cannot be opened.
        BuildError: If the ranker is damaged, or was fitted for another memory.
    """
    memory, cache = open_memory(run / "memory"), run / "quality.json"
    ranker = read_ranker(memory) if with_ranker and has_ranker(memory) else None
    digest = _digest(memory, ranker, queries)
    found = _read_cached(cache, digest)
    if found is None:
        found = _measure(run, memory, ranker, queries, device)
        write_json(cache, {"digest": digest, **vars(found)})
    return found


def _measure(run: Path, memory: Memory, ranker: RankerFile | None, queries: Queries, device: str) -> Quality:
    vectors, defaults = queries.vectors(run, device), memory.defaults
    tuned = InferenceSetting(defaults["lambda"], defaults["temperature"], int(defaults["top_b"]))
    curve = [tuned._replace(lambda_=lambda_) for lambda_ in sorted({*_LAMBDAS, tuned.lambda_})]
    values, instance_keys = memory.label_sets.to_csr(memory.plan.labels), memory.instance_keys
    label_keys = memory.label_keys().filled()

    best = np.empty((len(queries), DEPTH), dtype=np.int64)
    sums = {setting: np.zeros(2) for setting in curve}
    for start in with_progress(range(0, len(queries), _BLOCK_QUERIES), "block", "measure"):
        rows = slice(start, min(start + _BLOCK_QUERIES, len(queries)))
        block, truth, sizes = vectors[rows], queries.truth[rows], queries.sizes[rows]
        filtered = queries.filtered[rows]
        instances = Neighbours(*nearest(block, instance_keys, tuned.top_b, device))
        labels = Neighbours(*nearest(block, label_keys, tuned.top_b, device))
        for setting, predictions in predict(instances, labels, values, curve, DEPTH, filtered):
            hit = hits(predictions[:, :_TOP], truth)
            sums[setting] += precision_at(hit, 1).sum(), ndcg_at(hit, sizes, _TOP).sum()
            if setting == tuned:
                best[rows] = predictions

    counts = np.bincount(memory.value_indices, minlength=memory.plan.labels)
    shared = (queries.truth, counts, memory.plan.instances, queries.propensity)
    ranked = None if ranker is None else ranked_labels(memory, ranker, queries.texts(), vectors, queries.filtered)
    bits = np.packbits(hits(best[:, :_TOP], queries.truth), axis=1)
    return Quality(
        answering=dict(defaults),
        tuned=report(best, *shared),
        plain=report(_rank_labels(vectors, memory, queries, device), *shared),
        views={
            name: report(_rank_labels(alone, memory, queries, device), *shared)
            for name, alone in queries.views(run, vectors, device)
        },
        ranked=None if ranked is None else report(ranked, *shared),
        curve=[
            {"lambda": setting.lambda_, "P@1": 100 * float(first), f"nDCG@{_TOP}": 100 * float(second)}
            for setting, (first, second) in ((setting, total / len(queries)) for setting, total in sums.items())
        ],
        hits=bits[:, 0].tolist(),
    )


def _rank_labels(
    vectors: Float[np.ndarray, "query width"], memory: Memory, queries: Queries, device: str
) -> Int[np.ndarray, "query label"]:
    """The best labels of each query by the keys of the label texts alone, without the filtered labels."""
    best = np.full((len(queries), DEPTH), -1, dtype=np.int64)
    _, found = nearest(vectors, memory.label_keys(0.0).filled(), DEPTH + queries.most_filtered, device)
    kept = ~hits(found, queries.filtered)
    place = np.cumsum(kept, axis=1) - 1
    query, column = np.nonzero(kept & (place < DEPTH))
    best[query, place[query, column]] = found[query, column]
    return best


def _digest(memory: Memory, ranker: RankerFile | None, queries: Queries) -> str:
    digest = hashlib.sha256((memory.folder / "memory.json").read_bytes())
    if memory.distilled is not None:
        digest.update(memory.distilled.data)
    if ranker is not None:
        digest.update(ranker.model_dump_json().encode())
    digest.update(queries.sha256.encode())
    digest.update(str(_FORMAT_VERSION).encode())
    return digest.hexdigest()


def _read_cached(path: Path, digest: str) -> Quality | None:
    """Read the cached figures; None if no figures with this digest are cached."""
    try:
        cached: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Quality(**cached) if cached.pop("digest") == digest else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
