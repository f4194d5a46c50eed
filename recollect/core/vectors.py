"""Queries that are vectors in place of texts: their checks, and what their answers lack.

A vector is compared with the keys of the memory, so it must come from the final encoder of the version, with its
adapter. A vector has no words: keys that share words with a query have no vote, and a ranker, which reads words, does
not order the labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from recollect.core.bundle.manifest import Manifest
from recollect.core.errors import QueryError
from recollect.core.options import AnswerOptions


@dataclass(frozen=True)
class VectorQuery:
    """A checked vector, in single precision. Equal vectors are equal queries, for caches too."""

    content: bytes

    @property
    def vector(self) -> Float[np.ndarray, " dim"]:
        return np.frombuffer(self.content, dtype=np.float32)


# A query as a predictor answers it.
AnyQuery = str | VectorQuery


def check_vector(given: object, manifest: Manifest, name: str = "vector") -> VectorQuery:
    """Check a vector that a user sends, and give it the length 1 if the vectors of the version have it.

    Args:
        name: Name of the vector in messages.

    Raises:
        QueryError: If it does not have the dimension of the version, or is not finite, or is 0.
    """
    try:
        vector = np.asarray(given)
    except ValueError:  # lists of different lengths
        vector = np.empty(0, dtype=object)
    if vector.dtype.kind not in "iuf" or vector.shape != (manifest.dim,):
        found = f"{vector.shape[0]:,}" if vector.ndim == 1 else f"the shape {vector.shape}"
        raise QueryError(
            f"{name}: expected {manifest.dim:,} numbers, the dimension of version {manifest.version}, found "
            f"{found if vector.dtype.kind in 'iuf' else 'other values'}"
        )
    vector = vector.astype(np.float64)
    with np.errstate(over="ignore"):
        single = vector.astype(np.float32)
    if not np.isfinite(single).all():
        raise QueryError(f"{name}: expected finite numbers in single precision, found others")
    if not single.any():
        raise QueryError(f"{name}: expected a vector that is not 0, found zeros only")
    if manifest.encoder.normalised:
        single = (vector / np.linalg.norm(vector)).astype(np.float32)
    return VectorQuery(single.tobytes())


def without_words(manifest: Manifest, options: AnswerOptions) -> AnswerOptions:
    """The options with which a vector is answered: the same ones if words have no effect with them."""
    by_ranker = manifest.has_ranker and options.by_probability
    by_words = manifest.has_lexical_index and options.word_weight > 0
    return dataclasses.replace(options, order="score", word_weight=0.0) if by_ranker or by_words else options


def require_without_words(manifest: Manifest, options: AnswerOptions, chosen: Collection[str]) -> None:
    """Refuse options that a caller chose for a vector, and that need words.

    Raises:
        QueryError: If an option needs probabilities, which the version gives to texts only.
    """
    if without_words(manifest, options) is options:
        return
    needed = (options.assign, options.min_probability > 0, options.by_probability, options.rerank)
    for name, is_needed in zip(("assign", "min_probability", "order", "rerank"), needed, strict=True):
        if name in chosen and is_needed:
            raise QueryError(
                f"{name}: version {manifest.version} gives probabilities to texts only, because they need words; send "
                f"a text in place of a vector, or leave out {name}"
            )
