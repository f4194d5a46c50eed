"""Quality of a run on the test queries, by exact search over its memory, without a bundle.

A run is measured with its tuned settings, then with its label keys alone (lambda = 0 and alpha = 0), which makes it a
plain dual encoder, then in the order of its ranker, if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.ranking.artefact import has_ranker, read_ranker
from recollect.index_builder.ranking.bundle_ranker import needs_words
from recollect.index_builder.ranking.candidate_source import CandidateSource
from recollect.index_builder.ranking.gains import best_candidates
from recollect.service.console import progress_bar, with_progress
from recollect.service.ranking.model import RankerFile, RankerModel
from recollect.trainer.data.split import Split
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.memory.inference import InferenceSetting, Neighbours, predict
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.memory.search import nearest
from recollect.trainer.metrics import hits, ndcg_at, precision_at, report
from recollect.trainer.run_folder import RunFolder

# Number of labels to predict for each query, for R@100.
DEPTH = 100
_BLOCK_QUERIES = 8_192

Vectors = Float[np.ndarray, "query width"]
Metrics = dict[str, float | None]


class Queries:
    """Test texts and their true labels.

    Args:
        split: The test split.
        labels: Number of labels.
        propensity: A and B of the propensity model.
        frozen: Whether all runs share one frozen encoder. The texts are then encoded once for all adapters.

    Attributes:
        texts: The texts.
        truth: Sparse matrix of true labels, with one row for each query and one column for each label.
        filtered: Sparse matrix of the labels that are removed from the predictions for each query.
        propensity: A and B of the propensity model.
    """

    def __init__(self, split: Split, labels: int, propensity: tuple[float, float], frozen: bool) -> None:
        self.texts: list[str] = split.entries.texts.to_pylist()
        self.truth, self.filtered = split.labels.to_csr(labels), split.filtered.to_csr(labels)
        self.propensity = propensity
        self._frozen = frozen
        self._frozen_vectors: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def vectors(self, run: RunFolder, device: str) -> Vectors:
        """Encode the texts with the query encoder of a run."""
        if run.query_encoder.is_dir():
            return self._encode(load_checkpoint(run.query_encoder, device))
        encoder = load_checkpoint(run.checkpoint, device)
        if not self._frozen:
            return self._encode(encoder)
        if self._frozen_vectors is None:
            self._frozen_vectors = self._encode(encoder.without_adapter())
        return encoder.refine(self._frozen_vectors)

    def _encode(self, encoder: Encoder) -> Vectors:
        with progress_bar(len(self), "text", "encode") as bar:
            return encoder.encode(self.texts, encoder.config.max_length, bar.update)


@dataclass(frozen=True)
class Quality:
    """Quality of a run, in percent, and its cost.

    Attributes:
        answering: The tuned lambda, temperature, top_b and label_key_alpha.
        tuned: Every metric, with the tuned settings.
        plain: Every metric, with the label keys alone.
        views: nDCG@5 with one view of the label keys alone: `dual encoder` and `classifier` for `unidec`, empty for a
            method whose keys have one view.
        ranked: Every metric, in the order of the run's ranker; None if the run has no ranker.
        scores: P@1, P@3, P@5 and nDCG@5 of each query with the tuned settings, as fractions.
        measured: The seconds, the peak memory and the trainable parameters of the training; empty without training.
    """

    answering: dict[str, float]
    tuned: Metrics
    plain: Metrics
    views: Metrics
    ranked: Metrics | None
    scores: dict[str, list[float]]
    measured: dict[str, float]


def measure(path: Path, queries: Queries, device: str, with_ranker: bool = True) -> Quality:
    """Measure a run on the test queries.

    Args:
        path: The run folder, with checkpoint and memory.
        queries: The test queries.
        device: Device that encodes and searches.
        with_ranker: Whether to measure the order of the run's ranker too, if it has one.

    Raises:
        MemoryFolderError, EncoderError: If the run cannot be opened.
        BuildError: If the ranker is damaged, or was fitted for another memory.
    """
    run, memory = RunFolder(path), open_memory(path / "memory")
    ranker = read_ranker(memory) if with_ranker and has_ranker(memory) else None
    vectors = queries.vectors(run, device)

    def metrics(predictions: Int[np.ndarray, "query 100"]) -> Metrics:
        return report(predictions, queries.truth, memory.label_counts, memory.plan.instances, queries.propensity)

    views = {}
    head = load_checkpoint(run.checkpoint, device).model.head
    for view, part in (head.key_views() if head else {}).items():
        alone = np.zeros_like(vectors)  # inner products with the keys are then those of this view
        alone[:, part] = vectors[:, part]
        views[view] = metrics(_rank_labels(alone, memory, queries, device))["nDCG@5"]
    tuned = _predict(vectors, memory, queries, device)
    hit, sizes = hits(tuned, queries.truth), np.diff(queries.truth.indptr)
    scores = {f"P@{k}": precision_at(hit, k) for k in (1, 3, 5)} | {"nDCG@5": ndcg_at(hit, sizes, 5)}
    return Quality(
        answering=dict(memory.defaults),
        tuned=metrics(tuned),
        plain=metrics(_rank_labels(vectors, memory, queries, device)),
        views=views,
        ranked=None if ranker is None else metrics(_in_order_of_ranker(ranker, vectors, memory, queries)),
        scores={metric: of_queries.tolist() for metric, of_queries in scores.items()},
        measured=(run.training() or {}).get("measured") or {},
    )


def _predict(vectors: Vectors, memory: Memory, queries: Queries, device: str) -> Int[np.ndarray, "query 100"]:
    """The best labels of each query with the tuned settings; -1 pads short lists."""
    defaults = memory.defaults
    setting = InferenceSetting(defaults["lambda"], defaults["temperature"], int(defaults["top_b"]))
    values, label_keys = memory.relevance, memory.label_keys().filled()
    best = []
    for start in with_progress(range(0, len(queries), _BLOCK_QUERIES), "block", "measure"):
        rows = slice(start, start + _BLOCK_QUERIES)
        instances, labels = (
            Neighbours(*nearest(vectors[rows], keys, setting.top_b, device))
            for keys in (memory.instance_keys, label_keys)
        )
        best += [found for _, found in predict(instances, labels, values, [setting], DEPTH, queries.filtered[rows])]
    return np.concatenate(best)


def _rank_labels(vectors: Vectors, memory: Memory, queries: Queries, device: str) -> Int[np.ndarray, "query 100"]:
    """The best labels of each query by the keys of the label texts alone; -1 pads short lists."""
    best = np.full((len(queries), DEPTH), -1, dtype=np.int64)
    most_filtered = int(np.diff(queries.filtered.indptr).max(initial=0))
    _, found = nearest(vectors, memory.label_keys(0.0).filled(), DEPTH + most_filtered, device)
    kept = ~hits(found, queries.filtered)
    place = np.cumsum(kept, axis=1) - 1
    query, column = np.nonzero(kept & (place < DEPTH))
    best[query, place[query, column]] = found[query, column]
    return best


def _in_order_of_ranker(
    ranker: RankerFile, vectors: Vectors, memory: Memory, queries: Queries
) -> Int[np.ndarray, "query 100"]:
    """The best labels of each query in the order of the memory's ranker; -1 pads short lists."""
    model, source = RankerModel(ranker), CandidateSource(memory, needs_words(ranker))
    columns = [source.features.index(name) for name in model.features]
    best = []
    with progress_bar(len(queries), "query", "rank") as bar:
        for block in source.find(queries.texts, vectors, np.empty(0, dtype=np.int64)):
            query, label = block.candidates.query, block.candidates.label
            kept = np.asarray(queries.filtered[query + block.first, label]).ravel() == 0
            logits = model.logits(block.features[kept][:, columns])
            best.append(pick(label[kept], best_candidates(query[kept], logits, block.queries), -1))
            bar.update(block.queries)
    return np.concatenate(best)
