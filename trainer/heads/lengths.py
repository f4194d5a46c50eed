"""Vectors of any length as unit vectors with two more coordinates (`--no-normalise`, DEXML with tau 1).

Such a model is trained with the softmax of x z / tau, where the vectors x and z keep their lengths. Memory, indexes and
service need unit vectors. Let M be the length of the longest vector of all instances and labels. These vectors have
length 1:

    query:  [ x / M ; sqrt(1 - |x|^2 / M^2) ; 0 ]        key:  [ z / M ; 0 ; sqrt(1 - |z|^2 / M^2) ]

The inner product of a query and a key is x z / M^2, so the temperature tau / M^2 gives the same softmax. An instance is
a query and a key: its two forms differ in the order of the last two coordinates. A vector that is longer than M, of a
text that came after the training, is shortened to M.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from recollect.trainer.heads.adapter import Side

# Number of coordinates that `extend` appends.
ADDED = 2


def extend(vectors: Float[Tensor, "row dim"], longest: float, side: Side) -> Float[Tensor, "row extended"]:
    """Return unit vectors of this side.

    Args:
        vectors: Vectors of any length.
        longest: Length M of the longest vector.
        side: Instances count as queries; `exchange` turns them into keys.
    """
    scaled = vectors / longest
    scaled = scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).clamp_min(1)
    rest = (1 - (scaled * scaled).sum(dim=-1, keepdim=True)).clamp_min(0).sqrt()
    added = [rest, torch.zeros_like(rest)] if side == "queries" else [torch.zeros_like(rest), rest]
    return torch.cat([scaled, *added], dim=-1)


def exchange(vectors: Float[np.ndarray, "row extended"]) -> Float[np.ndarray, "row extended"]:
    """Return the keys of queries, or the queries of keys."""
    exchanged = vectors.copy()
    exchanged[:, -ADDED:] = vectors[:, : -ADDED - 1 : -1]
    return exchanged
