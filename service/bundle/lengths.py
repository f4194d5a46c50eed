"""Vectors that keep their lengths: the unit vectors of a text as a query and as a key.

A model that `recollect train --no-normalise` trained has vectors x and z of any length. M is the length of the longest
vector. Its unit vectors have two more coordinates:

    query:  [ x / M ; sqrt(1 - |x|^2 / M^2) ; 0 ]        key:  [ z / M ; 0 ; sqrt(1 - |z|^2 / M^2) ]

The inner product of a query and a key is x z / M^2. The encoder of a bundle gives queries. With normalisation, the
query and the key of a text are the same vector.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from recollect.service.bundle.manifest import EncoderInfo


def keys_of(queries: Float[np.ndarray, "*text dim"], info: EncoderInfo) -> Float[np.ndarray, "*text dim"]:
    """Return the keys of texts, given their vectors as queries."""
    if info.longest_vector is None:
        return queries
    keys = queries.copy()
    keys[..., -2], keys[..., -1] = queries[..., -1], queries[..., -2]
    return keys
