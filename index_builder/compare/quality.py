"""Quality of a run on the test queries, by exact search over its memory, without a bundle.

A run is measured with its tuned settings, then at each lambda of a curve, then with its label keys alone (lambda = 0
and alpha = 0), which makes it a plain dual encoder, then in the order of its ranker, if it has one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.index_builder.evaluation.predictions import pick
from recollect.index_builder.ranking.artefact import has_ranker, read_ranker
from recollect.index_builder.ranking.bundle_ranker import needs_words
from recollect.index_builder.ranking.candidate_source import CandidateSource
from recollect.index_builder.ranking.gains import best_candidates
from recollect.service.console import progress_bar, with_progress
from recollect.service.ranking.model import RankerFile, RankerModel
from recollect.trainer.data.split import Entries, Split, fingerprint
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.memory.inference import InferenceSetting, Neighbours, predict
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.memory.search import nearest
from recollect.trainer.metrics import hits, ndcg_at, precision_at, report
from recollect.trainer.run_folder import RunFolder

# Number of labels to predict for each query: 100 for R@100. The scores of single queries need only five.
DEPTH, _TOP = 100, 5
# Lambdas of the curve, in addition to the tuned lambda.
_LAMBDAS = tuple(round(0.1 * step, 1) for step in range(11))
_BLOCK_QUERIES = 8_192

Metrics = dict[str, float | None]


class Queries:
    """Test texts and their true labels. If the encoder is frozen, the texts are encoded once for all adapters.

    Args:
        labels: Labels of the dataset.
        split: The test split.
        propensity: A and B of the propensity model.
        frozen: Whether all contestants share one frozen encoder.

    Attributes:
        truth: Sparse matrix of true labels, with one row for each query and one column for each label.
        sizes: Number of true labels of each query.
        filtered: Sparse matrix of the labels that are removed from the predictions for each query.
        most_filtered: Largest number of filtered labels of one query.
        sha256: Digest of the texts, the labels, the filtered pairs and the propensity model.
    """

    def __init__(self, labels: Entries, split: Split, propensity: tuple[float, float], frozen: bool) -> None:
        self._split, self._frozen = split, frozen
        self._frozen_vectors: np.ndarray | None = None
        self.propensity = propensity
        self.truth = split.labels.to_csr(len(labels))
        self.sizes: Int[np.ndarray, " query"] = np.diff(self.truth.indptr)
        self.filtered = split.filtered.to_csr(len(labels))
        self.most_filtered = int(np.diff(self.filtered.indptr).max(initial=0))
        digest = hashlib.sha256(fingerprint(labels, split).encode())
        digest.update(repr(propensity).encode())
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._split)

    def texts(self) -> list[str]:
        texts: list[str] = self._split.entries.texts.to_pylist()
        return texts

    def vectors(self, run: Path, device: str) -> Float[np.ndarray, "query width"]:
        """Encode the texts with the query encoder of a run."""
        folder = RunFolder(run)
        if folder.query_encoder.is_dir():
            return self._encode(load_checkpoint(folder.query_encoder, device))
        encoder = load_checkpoint(folder.checkpoint, device)
        if not self._frozen:
            return self._encode(encoder)
        if self._frozen_vectors is None:
            self._frozen_vectors = self._encode(encoder.without_adapter())
        return encoder.refine(self._frozen_vectors)

    def views(
        self, run: Path, vectors: Float[np.ndarray, "query width"], device: str
    ) -> Iterator[tuple[str, Float[np.ndarray, "query width"]]]:
        """The vectors with one view only, for each view in the keys of a run. The other views are zero.

        Their inner products with a label key are those of this view alone, so they rank the labels by this view.
        """
        head = load_checkpoint(RunFolder(run).checkpoint, device).model.head
        for name, part in (head.key_views() if head else {}).items():
            alone = np.zeros_like(vectors)
            alone[:, part] = vectors[:, part]
            yield name, alone

    def _encode(self, encoder: Encoder) -> Float[np.ndarray, "query dim"]:
        texts = self.texts()
        with progress_bar(len(texts), "text", "encode") as bar:
            return encoder.encode(texts, encoder.config.max_length, bar.update)


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
    """Measure a run on the test queries.

    Args:
        run: The run folder, with checkpoint and memory.
        queries: The test queries.
        device: Device that encodes and searches.
        with_ranker: Whether to measure the order of the run's ranker too, if it has one.

    Raises:
        MemoryFolderError, EncoderError: If the run cannot be opened.
        BuildError: If the ranker is damaged, or was fitted for another memory.
    """
    memory = open_memory(run / "memory")
    ranker = read_ranker(memory) if with_ranker and has_ranker(memory) else None
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
    ranked = None if ranker is None else _ranked_labels(memory, ranker, queries.texts(), vectors, queries.filtered)
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


def _ranked_labels(
    memory: Memory,
    ranker: RankerFile,
    texts: Sequence[str],
    vectors: Float[np.ndarray, "query dim"],
    filtered: sparse.csr_matrix,
) -> Int[np.ndarray, "query 100"]:
    """The best 100 labels of each text in the order of a ranker; -1 pads short lists.

    Args:
        memory: The memory for which the ranker was fitted.
        ranker: The ranker.
        texts: The queries.
        vectors: Their vectors.
        filtered: The labels that are removed from the answers, with the axes (query, label).
    """
    model, source = RankerModel(ranker), CandidateSource(memory, needs_words(ranker))
    columns = [source.features.index(name) for name in model.features]
    none, best = np.empty(0, dtype=np.int64), []
    with progress_bar(len(texts), "query", "rank") as bar:
        for block in source.find(texts, vectors, none):
            query, label = block.candidates.query, block.candidates.label
            kept = np.asarray(filtered[query + block.first, label]).ravel() == 0
            logits = model.logits(block.features[kept][:, columns])
            best.append(pick(label[kept], best_candidates(query[kept], logits, block.queries), -1))
            bar.update(block.queries)
    return np.concatenate(best)


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
