"""The source of the cross-encoder's logit: files of the bundle, or a server."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

# Why a query has no logits.
LeftOut = Literal["deadline", "server", "text"]
Scored = Float[np.ndarray, " label"] | LeftOut


class Pair(NamedTuple):
    """A query and the texts of its candidates.

    Attributes:
        deadline: The time of `time.monotonic` after which the logits have no use.
    """

    query: str
    labels: list[str]
    deadline: float


class Scorer(abc.ABC):
    """Gives a logit to each candidate of a query."""

    @abc.abstractmethod
    def score(self, pairs: Sequence[Pair], checkpoint: Callable[[], None] = lambda: None) -> list[Scored]:
        """The logits of the candidates of each query, or the reason why it has none.

        `checkpoint` is called between the steps; an error that it raises stops the computation.
        """
