"""Enriched labels: a label's text vector mixed with the mean of its instances (PEFA-XS, Chang et al., WSDM 2024).

    z_l = unit( (1 - alpha) t_l + alpha unit( sum over instances i that have l of x_i ) )

A label without instances keeps its text vector.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def mix(
    texts: Float[np.ndarray, "row dim"], sums: Float[np.ndarray, "row dim"], alpha: float
) -> Float[np.ndarray, "row dim"]:
    """Mix text vectors with instance sums into unit vectors. A label whose sum is zero keeps its text vector."""
    mixed = (1 - alpha) * texts + alpha * _unit(sums)
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    unmixed = (np.linalg.norm(sums, axis=1, keepdims=True) == 0) | (lengths == 0)
    keys: np.ndarray = np.where(unmixed, texts, mixed / np.where(unmixed, 1, lengths)).astype(np.float32)
    return keys


def _unit(vectors: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray = vectors / np.where(lengths == 0, 1, lengths)
    return unit
