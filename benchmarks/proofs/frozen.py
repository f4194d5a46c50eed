"""RAE-XMC, Table 5 and Tables 4 and 8: the memory lifts frozen encoders, and instances and labels help each other."""

from __future__ import annotations

from pathlib import Path

from benchmarks.proofs.claim import Figures
from benchmarks.proofs.small_runs import Sample, draw_sample

_ENCODERS = {"minilm": "MiniLM", "static": "token vectors"}


def measure_frozen(folder: Path | None, work: Path, seed: int) -> Figures:
    sample = draw_sample(folder, work)
    figures: Figures = {}
    for encoder, name in _ENCODERS.items():
        curve = _curve(sample, sample.untrained(encoder), seed)
        figures |= {f"{name}, labels alone": curve[0.0], f"{name}, memory": curve[0.5]}
    return figures


def measure_lambda(folder: Path | None, work: Path, seed: int) -> Figures:
    sample = draw_sample(folder, work)
    curve = _curve(sample, sample.train("rae", seed, method="rae"), seed)
    inner = max((lambda_ for lambda_ in curve if 0 < lambda_ < 1), key=lambda lambda_: curve[lambda_])
    return {
        "labels alone": curve[0.0],
        "instances alone": curve[1.0],
        "lambda 0.5": curve[0.5],
        "best lambda between": curve[inner],
    }


def _curve(sample: Sample, run: Path, seed: int) -> dict[float, float]:
    """P@1 at each lambda."""
    return {point["lambda"]: point["P@1"] for point in sample.measure(run, seed).curve}
