"""The contestants of `recollect train --best`, and their shares of the time.

    untrained   the pretrained encoder without training
    adapter     an adapter, trained on the vectors of the untrained encoder
    static      a static encoder, which takes its first token vectors from the pretrained encoder

The pretrained encoder must encode all texts before the first two can answer. With many texts and little time, they are
left out, so that the static encoder gets the whole time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.encoder import Encoder
from trainer.settings import STATIC

UNTRAINED, ADAPTER = "untrained", "adapter"
# Number of texts that are encoded to estimate the time for all texts.
_PROBE_TEXTS = 256
# Maximum share of the time for encoding all texts with the pretrained encoder.
_ENCODING_SHARE = 0.5
# Shares of the time for training; the rest is for tuning and ranking, and for the encoding of the trained memories.
_TRAINING_SHARE = {ADAPTER: 0.2, STATIC: 0.35}


@dataclass(frozen=True)
class Contestant:
    """One run.

    Attributes:
        name: Name of the contestant, and of its run folder.
        flags: Flags of `recollect train` in which it differs from the given ones.
    """

    name: str
    flags: dict[str, Any]


def estimate_seconds(encoder: Encoder, texts: pa.LargeStringArray, max_length: int) -> float:
    """The time that an encoder needs for all texts, estimated from a sample of them."""
    rows = np.linspace(0, len(texts) - 1, num=min(_PROBE_TEXTS, len(texts)), dtype=int)
    sample = texts.take(pa.array(rows)).to_pylist()
    encoder.encode(sample[:8], max_length)  # the first batch also starts threads and allocates memory
    start = time.perf_counter()
    encoder.encode(sample, max_length)
    return (time.perf_counter() - start) * len(texts) / len(sample)


def choose_contestants(runs: Path, encoder: str, encoding_seconds: float, seconds: float) -> list[Contestant]:
    """The contestants that fit into a time limit.

    Args:
        runs: Folder of the runs.
        encoder: The pretrained encoder.
        encoding_seconds: Time to encode all texts with it.
        seconds: The time limit.
    """
    static: dict[str, Any] = {"encoder": STATIC, "static_from": encoder}
    if encoding_seconds > _ENCODING_SHARE * seconds:
        rest = {**static, "max_seconds": sum(_TRAINING_SHARE.values()) * seconds}
        return [Contestant(STATIC, rest)]
    vectors = runs / UNTRAINED / "memory"
    adapter = {"vectors": vectors, "max_seconds": _TRAINING_SHARE[ADAPTER] * (seconds - encoding_seconds)}
    static["max_seconds"] = _TRAINING_SHARE[STATIC] * (seconds - encoding_seconds)
    return [Contestant(UNTRAINED, {"epochs": 0}), Contestant(ADAPTER, adapter), Contestant(STATIC, static)]
