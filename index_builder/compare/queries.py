"""The queries of the test split: texts, true labels, and what no prediction may hold."""

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
    """Test texts with their true labels; a frozen encoder encodes them once for all of its adapters.

    Args:
        labels: The dataset's.
        split: The test split.
        propensity: A and B of the propensity model.
        frozen: Whether all contestants stand on one frozen encoder.

    Attributes:
        truth: True labels, "query label".
        sizes: How many each query has.
        filtered: Pairs of query and label that no prediction may hold.
        most_filtered: Most labels that are filtered for one query.
        sha256: Of all that decides what is measured.
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
        """The query vectors that a checkpoint makes of the texts."""
        encoder = load_checkpoint(checkpoint, device)
        if not self._frozen:
            return self._encode(encoder)
        if self._frozen_vectors is None:
            self._frozen_vectors = self._encode(encoder.without_adapter())
        return encoder.refine(self._frozen_vectors)

    def admitted(
        self, predictions: Int[np.ndarray, "query found"], first_query: int, depth: int
    ) -> Int[np.ndarray, "query depth"]:
        """Each query's first labels, those that are filtered for it left out, -1 where there are fewer.

        Args:
            predictions: Labels, best first; as many more than `depth` as may be filtered.
            first_query: Which query comes first.
            depth: Labels to keep.
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
