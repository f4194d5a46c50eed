"""The precision in which a CPU encodes the texts of a memory.

Encoding is most of the time of a run on a CPU. Products of matrices in bfloat16 take half the time on CPUs that have
instructions for them (AVX512_BF16, AMX), and more time than in fp32 on others. So a sample of the texts decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from recollect.trainer.encoding.encoder import Encoder, EncodingPrecision

# Fewest texts of a memory for which the measurement takes less time than it can save.
_FEWEST_TEXTS = 2_000
# Number of texts that are timed, how often each precision encodes them, and number of texts whose vectors are compared.
_TIMED_TEXTS, _ROUNDS, _COMPARED_TEXTS = 16, 3, 64
# Least speed of bf16, relative to fp32: near 1, two measurements on one machine could choose differently.
_LEAST_SPEED = 1.2
# Least cosine between the vectors of a text in bf16 and in fp32. `recollect build` allows less, because other texts may
# have a lower cosine than the sample, and an adapter increases the difference.
_WORST_COSINE = 0.9995


def choose_precision(
    encoder: Encoder,
    texts: pa.LargeStringArray,
    asked: Literal["auto", "fp32", "tf32", "bf16"],
    report: Callable[[str], None],
) -> EncodingPrecision:
    """Choose the precision in which an encoder encodes the texts of instances, and report the reason in a line.

    Only a transformer on a CPU encodes in bf16, and only if a sample of its vectors is close to those in fp32.

    Args:
        asked: `fp32`: refuse bf16; `auto`: use bf16 only for many texts, and if a sample shows that it is faster.
    """
    if asked in ("fp32", "tf32") or encoder.device != "cpu" or encoder.served is not None or encoder.model.is_static:
        return "fp32"
    if asked == "auto" and len(texts) < _FEWEST_TEXTS:
        return "fp32"
    full, half = encoder.in_precision("fp32"), encoder.in_precision("bf16")
    speed = ""
    if asked == "auto":
        ratio = _relative_speed(full, half, _sample(texts, _TIMED_TEXTS))
        if ratio < _LEAST_SPEED:
            report(f"encode: fp32, because bf16 has {ratio:.2g} times its speed here")
            return "fp32"
        speed = f"{ratio:.1f} times the speed of fp32, "
    compared = _sample(texts, _COMPARED_TEXTS)
    first, second = (each.encode(compared, each.config.max_length).astype(np.float64) for each in (full, half))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    worst = float(((first * second).sum(axis=1) / lengths).min(initial=1.0))
    if not worst >= _WORST_COSINE:
        report(f"encode: fp32, because a vector in bf16 has the cosine {worst:.4f} to that in fp32")
        return "fp32"
    report(f"encode: bf16, {speed}worst cosine {worst:.5f}")
    return "bf16"


def _relative_speed(full: Encoder, half: Encoder, texts: list[str]) -> float:
    """The speed of `half` relative to that of `full`: the quotient of their shortest CPU times for these texts.

    Other processes on the machine hardly change the CPU time of one thread. Several threads wait for each other.
    """
    seconds: dict[Encoder, list[float]] = {full: [], half: []}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for encoder in (full, half):
            encoder.encode(texts[:1], encoder.config.max_length)  # the first batch also makes kernels
        for _ in range(_ROUNDS):
            for encoder, spent in seconds.items():
                start = time.thread_time()
                encoder.encode(texts, encoder.config.max_length)
                spent.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(seconds[full]) / min(seconds[half])


def _sample(texts: pa.LargeStringArray, most: int) -> list[str]:
    """Some of the texts, evenly spaced."""
    rows = np.linspace(0, len(texts) - 1, num=min(most, len(texts)), dtype=np.int64)
    sample: list[str] = texts.take(pa.array(rows)).to_pylist()
    return sample
