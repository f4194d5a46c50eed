"""The test queries: texts, true labels, and the filtered labels of each query."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from recollect.trainer.data.split import Entries, Split, fingerprint
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.progress_bar import progress_bar
from recollect.trainer.run_folder import RunFolder


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
