"""Requests of a load test: queries of several lengths from real texts. The frequencies follow Zipf's law."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

# Share of each kind of request. The kinds `short`, `medium` and `long` are single queries without options.
SHARES = {"short": 0.35, "medium": 0.30, "long": 0.08, "batch": 0.10, "filter": 0.10, "explain": 0.07}
# Maximum number of words in a query: a short search, one or two sentences, or a page that the encoder may truncate.
_WORDS = {"short": 4, "medium": 40, "long": 300}
_MOST_BATCHED, _MOST_FILTERED = 16, 20


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        kind: A key of `SHARES`.
        queries: The query of a single request, or the queries of a batch.
        options: All other fields of the body.
    """

    kind: str
    queries: list[str]
    options: dict[str, Any]

    @property
    def path(self) -> str:
        return "/predict/batch" if self.kind == "batch" else "/predict"

    @property
    def body(self) -> str:
        content = {"queries": self.queries} if self.kind == "batch" else {"query": self.queries[0]}
        return json.dumps(content | self.options)


def make_requests(texts: Sequence[str], uids: Sequence[str], count: int, seed: int) -> list[Request]:
    """Make random requests. The probability of each kind is its share in `SHARES`.

    Args:
        texts: Texts that are cut or joined into queries of the right length.
        uids: Label uids for filters.
        count: Number of requests.
        seed: Random seed. Equal seeds give equal requests.
    """
    generator = random.Random(seed)

    def query(length: str) -> str:
        joined = " ".join(generator.choices(texts, k=_WORDS["long"] if length == "long" else 1))
        return " ".join(joined.split()[: _WORDS[length]])

    def request(kind: str) -> Request:
        length = kind if kind in _WORDS else "medium"
        queries = [query(length) for _ in range(generator.randint(2, _MOST_BATCHED) if kind == "batch" else 1)]
        if kind == "filter":
            chosen = generator.sample(uids, min(len(uids), generator.randint(1, _MOST_FILTERED)))
            return Request(kind, queries, {generator.choice(["allow", "deny"]): chosen})
        return Request(kind, queries, {"explain": True} if kind == "explain" else {})

    return [request(kind) for kind in generator.choices([*SHARES], [*SHARES.values()], k=count)]


def zipf_ranks(count: int, draws: int, seed: int) -> list[int]:
    """Draw random numbers below `count`. The probability of a number is in proportion to 1 / (number + 1)."""
    weights = 1 / np.arange(1, count + 1)
    drawn: list[int] = np.random.default_rng(seed).choice(count, size=draws, p=weights / weights.sum()).tolist()
    return drawn


class Texts(Protocol):
    """Texts by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> str: ...


def sample_texts(texts: Texts, most: int) -> list[str]:
    """Choose up to `most` texts at equal distances, and leave out empty texts."""
    rows = np.unique(np.linspace(0, len(texts) - 1, num=most, dtype=int)).tolist()
    return [text for row in rows if (text := texts[row]).strip()]
