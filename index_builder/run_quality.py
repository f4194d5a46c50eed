"""Quality of a run on the test queries, by exact search over its memory, without a bundle.

A run is measured with its tuned settings, and with its label keys alone (lambda = 0 and alpha = 0), which makes it a
plain dual encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.core.neighbours import Neighbours
from recollect.core.system.console import progress_bar, with_progress
from recollect.index_builder.evaluation.measured import report
from recollect.trainer.data.split import Split
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.memory.inference import InferenceSetting, predict
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.memory.search import nearest
from recollect.trainer.metrics import propensity_weights, query_scores
from recollect.trainer.run_folder import RunFolder

# Number of labels to predict for each query, for R@100.
DEPTH = 100
_BLOCK_QUERIES = 8_192
# Metrics whose scores of single queries are kept, for the intervals of differences.
TESTED = ("P@1", "P@3", "P@5", "nDCG@5")

Vectors = Float[np.ndarray, "query width"]
Metrics = dict[str, float | None]


class LabelledQueries:
    """Test texts and their true labels, and A and B of the propensity model.

    If all runs share one frozen encoder, the texts are encoded once for all adapters. The labels `filtered` are removed
    from the predictions for each query.
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
    """Quality of a run, in percent, and its cost."""

    answering: dict[str, float]  # the tuned lambda, temperature, top_b and label_key_alpha
    tuned: Metrics  # with the tuned settings
    plain: Metrics  # with the label keys alone
    # nDCG@5 with one view of the label keys alone: `dual encoder` and `classifier` for `unidec`, otherwise empty.
    views: Metrics
    scores: dict[str, list[float]]  # of each query, by `TESTED`, with the tuned settings
    measured: dict[str, float]  # seconds, peak memory and parameters of the training; empty without training


def measure(path: Path, queries: LabelledQueries, device: str) -> Quality:
    """Measure a run on the test queries.

    Raises:
        MemoryFolderError, EncoderError: If the run cannot be opened.
    """
    run, memory = RunFolder(path), open_memory(path / "memory")
    vectors, defaults = queries.vectors(run, device), memory.defaults
    label_counts = memory.label_counts

    def metrics(predictions: Int[np.ndarray, "query 100"]) -> Metrics:
        return report(predictions, queries.truth, label_counts, memory.plan.instances, queries.propensity)

    filtered_limit = int(np.diff(queries.filtered.indptr).max(initial=0))
    label_keys_alone = InferenceSetting(0.0, 1.0, DEPTH + filtered_limit)  # tau does not change the order of labels

    def plain(vectors: Vectors) -> Metrics:
        return metrics(best_labels(vectors, memory, label_keys_alone, 0.0, queries.filtered, device))

    head = load_checkpoint(run.checkpoint, device).model.head
    views = {view: plain(alone(vectors, part))["nDCG@5"] for view, part in (head.key_views() if head else {}).items()}
    setting = InferenceSetting(defaults["lambda"], defaults["temperature"], int(defaults["top_b"]))
    best = best_labels(vectors, memory, setting, defaults["label_key_alpha"], queries.filtered, device)
    weights = propensity_weights(label_counts, memory.plan.instances, *queries.propensity)
    return Quality(
        answering=dict(defaults),
        tuned=metrics(best),
        plain=plain(vectors),
        views=views,
        scores={metric: query_scores(metric, best, queries.truth, weights).tolist() for metric in TESTED},
        measured=(run.training() or {}).get("measured") or {},
    )


def alone(vectors: Vectors, part: slice) -> Vectors:
    """Vectors whose inner products with the keys are those of one view of the keys."""
    one_view = np.zeros_like(vectors)
    one_view[:, part] = vectors[:, part]
    return one_view


def best_labels(
    vectors: Vectors,
    memory: Memory,
    setting: InferenceSetting,
    alpha: float,
    filtered: sparse.csr_matrix,
    device: str = "cpu",
) -> Int[np.ndarray, "query 100"]:
    """The best labels of each query with a setting and label keys of weight alpha; -1 pads short lists."""
    values, label_keys = memory.relevance, memory.label_keys(alpha).filled()
    instance_keys = memory.instance_keys if setting.lambda_ else memory.instance_keys[:0]
    best = []
    for start in with_progress(range(0, len(vectors), _BLOCK_QUERIES), "block", "measure"):
        rows = slice(start, start + _BLOCK_QUERIES)
        instances, labels = (
            Neighbours(*nearest(vectors[rows], keys, setting.top_b, device)) for keys in (instance_keys, label_keys)
        )
        best += [found for _, found in predict(instances, labels, values, [setting], DEPTH, filtered[rows])]
    return np.concatenate(best)
