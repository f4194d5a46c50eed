"""Texts of a version as queries. Their frequencies can follow Zipf's law, as those of web queries do."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Texts(Protocol):
    """Texts by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> str: ...


def sample_texts(texts: Texts, most: int) -> list[str]:
    """Choose up to `most` texts at equal distances, and leave out empty texts."""
    rows = np.unique(np.linspace(0, len(texts) - 1, num=most, dtype=int)).tolist()
    return [text for row in rows if (text := texts[row]).strip()]


def zipf_ranks(count: int, draws: int, seed: int) -> list[int]:
    """Draw random numbers below `count`. The probability of a number is in proportion to 1 / (number + 1)."""
    weights = 1 / np.arange(1, count + 1)
    drawn: list[int] = np.random.default_rng(seed).choice(count, size=draws, p=weights / weights.sum()).tolist()
    return drawn
