"""Requests of a load test: queries of several lengths from real texts. The frequencies follow Zipf's law."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from recollect.service.bundle.bundle import Bundle

# Share of each kind of request. The kinds `short`, `medium` and `long` are single queries without options.
SHARES = {"short": 0.35, "medium": 0.30, "long": 0.08, "batch": 0.10, "filter": 0.10, "explain": 0.07}
# Maximum number of words in a query: a short search, one or two sentences, or a page that the encoder may truncate.
_WORDS = {"short": 4, "medium": 40, "long": 300}
_MOST_BATCHED, _MOST_FILTERED = 16, 20
# Exponent of Zipf's law: the n-th most frequent request has a frequency in proportion to 1 / n, as web queries have.
_EXPONENT = 1.0
# Numbers of texts, of different requests, and of requests that are drawn from them.
_TEXTS, _REQUESTS, _DRAWS, _SEED = 2_000, 200, 100_000, 7


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        kind: A key of `SHARES`.
        queries: The query of a single request, or the queries of a batch.
        options: All other fields of the body.
        path: Path of the POST request.
        body: Body of the POST request.
    """

    kind: str
    queries: tuple[str, ...]
    options: dict[str, Any]
    path: str = field(init=False)
    body: bytes = field(init=False)

    def __post_init__(self) -> None:
        batch = self.kind == "batch"
        content = {"queries": self.queries} if batch else {"query": self.queries[0]}
        object.__setattr__(self, "path", "/predict/batch" if batch else "/predict")
        object.__setattr__(self, "body", json.dumps(content | self.options).encode())


def make_requests(texts: Sequence[str], uids: Sequence[str], count: int, seed: int) -> list[Request]:
    """Make random requests. The probability of each kind is its share in `SHARES`.

    Args:
        texts: Texts that are cut or joined into queries of the right length.
        uids: Label uids for filters.
        count: Number of requests.
        seed: Random seed. Equal seeds give equal requests.
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
        chosen = [uids[row] for row in generator.choice(len(uids), size, replace=False).tolist()]
        return Request(kind, (query("medium"),), {str(generator.choice(["allow", "deny"])): chosen})

    return [request(kind) for kind in kinds]


def draw_requests(bundle: Bundle, queries: Sequence[str] | None = None) -> list[Request]:
    """Draw requests in the order in which a load test sends them. A few of them are frequent, most of them are rare.

    Args:
        bundle: Version whose texts become the queries, and whose labels become the filters.
        queries: Other texts for the queries.
    """
    texts = sample_texts(bundle.instances.texts if queries is None else queries, _TEXTS)
    pool = make_requests(texts, sample_texts(bundle.labels.uids, _TEXTS), _REQUESTS, _SEED)
    return [pool[rank] for rank in zipf_ranks(len(pool), _DRAWS, _SEED)]


def zipf_ranks(count: int, draws: int, seed: int) -> list[int]:
    """Draw random numbers below `count`. The probability of a number is in proportion to 1 / (number + 1)."""
    weights = 1 / np.arange(1, count + 1) ** _EXPONENT
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
