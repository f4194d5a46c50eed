"""The requests of a load test: real queries of several lengths, few of them asked often (Zipf), most of them rarely."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

# What share of the requests is of which kind. The first three are single queries, without options.
SHARES = {"short": 0.35, "medium": 0.30, "long": 0.08, "batch": 0.10, "filter": 0.10, "explain": 0.07}
# Words of a query: a short one is searched, a medium one is a sentence or two, a long one a page that may be cut.
_WORDS = {"short": 4, "medium": 40, "long": 300}
_MOST_BATCHED, _MOST_FILTERED = 16, 20
# The nth most frequent request is asked in proportion to 1 / n: web queries are close to that.
_EXPONENT = 1.0


@dataclass(frozen=True)
class Request:
    """One request; `options` as in the body, without its queries.

    Attributes:
        kind: One of `SHARES`.
        queries: One, or those of a batch.
        options: What else the body says.
        path: Where it is posted.
        body: What is posted.
    """

    kind: str
    queries: tuple[str, ...]
    options: dict[str, Any]
    path: str = field(init=False)
    body: bytes = field(init=False)

    def __post_init__(self) -> None:
        batch = self.kind == "batch"
        asked = {"queries": self.queries} if batch else {"query": self.queries[0]}
        object.__setattr__(self, "path", "/predict/batch" if batch else "/predict")
        object.__setattr__(self, "body", json.dumps(asked | self.options).encode())


def requests(texts: Sequence[str], uids: Sequence[str], count: int, seed: int) -> list[Request]:
    """Requests that differ, of all kinds by their shares.

    Args:
        texts: What is asked, cut or put together to the length wanted.
        uids: Labels that filters may name.
        count: How many.
        seed: What makes the choice; the same gives the same.
    """
    generator = np.random.default_rng(seed)
    kinds = generator.choice(list(SHARES), size=count, p=np.array([*SHARES.values()]) / sum(SHARES.values())).tolist()

    def query(kind: str) -> str:
        words: list[str] = []
        while len(words) < _WORDS[kind]:
            words += texts[int(generator.integers(len(texts)))].split() or ["?"]
            if kind != "long":
                break
        return " ".join(words[: _WORDS[kind]])

    def request(kind: str) -> Request:
        if kind in _WORDS:
            return Request(kind, (query(kind),), {})
        if kind == "batch":
            return Request(kind, tuple(query("medium") for _ in range(generator.integers(2, _MOST_BATCHED + 1))), {})
        if kind == "explain":
            return Request(kind, (query("medium"),), {"explain": True})
        size = min(len(uids), int(generator.integers(1, _MOST_FILTERED + 1)))
        named = [uids[row] for row in generator.choice(len(uids), size, replace=False).tolist()]
        return Request(kind, (query("medium"),), {str(generator.choice(["allow", "deny"])): named})

    return [request(kind) for kind in kinds]


def zipf(count: int, draws: int, seed: int) -> list[int]:
    """Numbers below `count`, the first drawn most often, each later one in proportion to 1 / its rank."""
    weights = 1 / np.arange(1, count + 1) ** _EXPONENT
    drawn: list[int] = np.random.default_rng(seed).choice(count, size=draws, p=weights / weights.sum()).tolist()
    return drawn


class Texts(Protocol):
    """Texts by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> str: ...


def spread(texts: Texts, most: int) -> list[str]:
    """So many texts, evenly over all, without those that hold no words."""
    rows = np.unique(np.linspace(0, len(texts) - 1, num=most, dtype=int)).tolist()
    return [text for row in rows if (text := texts[row]).strip()]
