"""The test queries: texts, true labels, and the filtered labels of each query."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from tqdm import tqdm

from trainer.checkpoint import load_checkpoint
from trainer.data.split import Entries, Split, fingerprint
from trainer.encoder import Encoder


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
        filtered: Number of filtered pairs: a query, and a label that must not be predicted for it.
        most_filtered: Largest number of filtered labels of one query.
        sha256: Digest of the texts, the labels, the filtered pairs and the propensity model.
    """

    def __init__(self, labels: Entries, split: Split, propensity: tuple[float, float], frozen: bool) -> None:
        self._split, self._frozen = split, frozen
        self._frozen_vectors: np.ndarray | None = None
        self.propensity = propensity
        self.truth = split.labels.to_csr(len(labels))
        self.sizes: Int[np.ndarray, " query"] = np.diff(self.truth.indptr)
        rows, columns = split.filtered_pairs.T
        self._filtered = np.sort(rows * np.int64(len(labels)) + columns)
        self.filtered = len(rows)
        self.most_filtered = int(np.bincount(rows).max(initial=0))
        digest = hashlib.sha256(fingerprint(labels, split).encode())
        digest.update(self._filtered.tobytes())
        digest.update(repr(propensity).encode())
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._split)

    def vectors(self, checkpoint: Path, device: str) -> Float[np.ndarray, "query width"]:
        """Encode the texts with the encoder of a checkpoint."""
        encoder = load_checkpoint(checkpoint, device)
        if not self._frozen:
            return self._encode(encoder)
        if self._frozen_vectors is None:
            self._frozen_vectors = self._encode(encoder.without_adapter())
        return encoder.refine(self._frozen_vectors)

    def remove_filtered(
        self, predictions: Int[np.ndarray, "query found"], first_query: int, depth: int
    ) -> Int[np.ndarray, "query depth"]:
        """Remove the filtered labels from the predictions for each query, and keep the best `depth` others.

        -1 pads short lists.

        Args:
            predictions: Labels for each query, best first. There must be `depth + most_filtered` of them.
            first_query: Number of the query in the first row of `predictions`.
            depth: Number of labels to keep.
        """
        queries = first_query + np.arange(len(predictions))
        dropped = np.isin(queries[:, None] * np.int64(self.truth.shape[1]) + predictions, self._filtered)
        dropped |= predictions < 0
        order = np.argsort(dropped, axis=1, kind="stable")[:, :depth]
        kept: np.ndarray = np.take_along_axis(np.where(dropped, -1, predictions), order, axis=1)
        return kept

    def _encode(self, encoder: Encoder) -> Float[np.ndarray, "query dim"]:
        texts = self._split.entries.texts.to_pylist()
        with tqdm(total=len(texts), unit="text", unit_scale=True, desc="encode", dynamic_ncols=True) as bar:
            return encoder.encode(texts, encoder.config.max_length, bar.update)
