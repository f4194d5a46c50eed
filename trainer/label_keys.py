"""Label keys: a label's text vector, mixed with the mean of its instances' vectors (PEFA-XS, Chang et al., WSDM 2024).

    z_l = unit( (1 - alpha) t_l + alpha unit( sum over instances i that have l of x_i ) )

A label without instances keeps its text vector. The mix is free: no training, and nothing to do when a query comes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from trainer.data.split import LabelSets

# Labels mixed at once where all are.
_STRETCH_LABELS = 4_096


class LabelKeys:
    """Label keys that are mixed as they are read, so that mapped keys stay mapped; `keys[rows]` as of an array.

    Args:
        text_keys: The label texts' vectors, "label dim".
        instance_keys: The instances' vectors, "instance dim".
        label_sets: The labels of each instance.
        alpha: Weight of the instances, from 0 (text alone) to 1.
    """

    def __init__(
        self,
        text_keys: Float[np.ndarray, "label dim"],
        instance_keys: Float[np.ndarray, "instance dim"],
        label_sets: LabelSets,
        alpha: float,
    ) -> None:
        self.shape: tuple[int, int] = (text_keys.shape[0], text_keys.shape[1])
        self._text_keys, self._instance_keys, self.alpha = text_keys, instance_keys, alpha
        self._label_sets = label_sets

    @functools.cached_property
    def _instances(self) -> sparse.csr_matrix:
        """The instances of each label; text keys alone never ask for it."""
        return self._label_sets.to_csr(len(self)).T.tocsr()

    @property
    def counts(self) -> Int[np.ndarray, " label"]:
        """How many instances each label has."""
        return np.diff(self._instances.indptr)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        texts = np.asarray(self._text_keys[rows], dtype=np.float32)
        return texts if self.alpha == 0 else mix(texts, self.sums(rows), self.alpha)

    def filled(self) -> Float[np.ndarray, "label dim"]:
        """All keys, in one array that is filled stretch by stretch; text keys alone as they lie there."""
        if self.alpha == 0:
            return self[:]
        return self._stretched(self.__getitem__)

    def all_sums(self) -> Float[np.ndarray, "label dim"]:
        """The sums of all labels; text keys alone have none to add up."""
        if self.alpha == 0:
            return np.broadcast_to(np.float32(0), self.shape)
        return self._stretched(self.sums)

    def sums(self, rows: slice | Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        """The sum of each label's instance vectors."""
        instances = self._instances[rows]
        used, columns = np.unique(instances.indices, return_inverse=True)
        compact = sparse.csr_matrix((instances.data, columns, instances.indptr), shape=(instances.shape[0], len(used)))
        sums: np.ndarray = compact @ np.asarray(self._instance_keys[used], dtype=np.float32)
        return sums

    def _stretched(self, read: Callable[[slice], np.ndarray]) -> Float[np.ndarray, "label dim"]:
        filled = np.empty(self.shape, dtype=np.float32)
        for start in range(0, len(self), _STRETCH_LABELS):
            stretch = slice(start, start + _STRETCH_LABELS)
            filled[stretch] = read(stretch)
        return filled


def mix(
    texts: Float[np.ndarray, "row dim"], sums: Float[np.ndarray, "row dim"], alpha: float
) -> Float[np.ndarray, "row dim"]:
    """Unit vectors between text vectors and instance means; where there is nothing to mix with, the text's."""
    mixed = (1 - alpha) * texts + alpha * _unit(sums)
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    nothing = (np.linalg.norm(sums, axis=1, keepdims=True) == 0) | (lengths == 0)
    keys: np.ndarray = np.where(nothing, texts, mixed / np.where(nothing, 1, lengths)).astype(np.float32)
    return keys


def _unit(vectors: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray = vectors / np.where(lengths == 0, 1, lengths)
    return unit
