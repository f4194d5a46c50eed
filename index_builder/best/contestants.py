"""The contestants of `recollect train --best`, and their shares of the time.

    untrained   the pretrained encoder without training
    adapter     an adapter, trained on the vectors of the untrained encoder
    static      a static encoder, which takes its first token vectors from the pretrained encoder

The pretrained encoder must encode all texts before the first two can answer. With many texts and little time, they are
left out, so that the static encoder gets the whole time.

The first contestant shows how long tuning and ranking take. The trainings share the rest of the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.settings import STATIC

UNTRAINED, ADAPTER = "untrained", "adapter"
# Number of texts that are encoded to estimate the time for all texts.
_PROBE_TEXTS = 256
# Maximum share of the time for encoding all texts with the pretrained encoder.
_ENCODING_SHARE = 0.5
# Share of the whole time that a contestant needs for tuning and ranking, until one contestant has been measured.
_MEASURING_SHARE = 0.15
# All trainings together get at least this share of the time limit.
_LEAST_TRAINING_SHARE = 0.1


@dataclass(frozen=True)
class Contestant:
    """One run.

    Attributes:
        name: Name of the contestant, and of its run folder.
        flags: Flags of `recollect train` in which it differs from the given ones.
        share: Its share of the time for training, relative to the other contestants; 0 if it is not trained.
    """

    name: str
    flags: dict[str, Any]
    share: float = 0.0


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
    static = Contestant(STATIC, {"encoder": STATIC, "static_from": encoder}, share=0.65)
    if encoding_seconds > _ENCODING_SHARE * seconds:
        return [static]
    adapter = Contestant(ADAPTER, {"vectors": runs / UNTRAINED / "memory"}, share=0.35)
    return [Contestant(UNTRAINED, {"epochs": 0}), adapter, static]


def training_seconds(waiting: Sequence[Contestant], left: float, seconds: float, measuring: float | None) -> float:
    """The time to train the first contestant in a list.

    Args:
        waiting: The contestants that are not trained yet.
        left: The time that is left.
        seconds: The time limit.
        measuring: Time for the tuning and the ranking of a contestant; None if it is not known yet.
    """
    reserved = len(waiting) * (_MEASURING_SHARE * seconds if measuring is None else measuring)
    training = max(left - reserved, _LEAST_TRAINING_SHARE * seconds)
    return training * waiting[0].share / sum(contestant.share for contestant in waiting)
