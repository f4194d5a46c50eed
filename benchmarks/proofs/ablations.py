"""PRIME, Table 6, and UniDEC, Table 5: the parts of both methods, each left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.proofs.claim import Figures
from benchmarks.proofs.small_runs import draw_sample

_PRIME: dict[str, dict[str, Any]] = {
    "PRIME": {},
    "text alone": {"prototype": ["text"]},
    "without free vectors": {"prototype": ["text", "centroid"]},
    "without centroids": {"prototype": ["text", "free"]},
}
_UNIDEC: dict[str, dict[str, Any]] = {
    "UniDEC": {},
    "dual encoder alone": {"method": "supcon"},
    "one positive": {"positives": 1},
    "PAL": {"psl": "pal"},
}


def measure_prime(folder: Path | None, work: Path, seed: int) -> Figures:
    return _ablate("prime", _PRIME, folder, work, seed)[0]


def measure_unidec(folder: Path | None, work: Path, seed: int) -> Figures:
    figures, views = _ablate("unidec", _UNIDEC, folder, work, seed)
    return figures | {f"view: {name}": value for name, value in views.items()}


def _ablate(
    method: str, variants: Mapping[str, Mapping[str, Any]], folder: Path | None, work: Path, seed: int
) -> tuple[Figures, Figures]:
    """nDCG@5 with label keys alone of each variant, and of each view of the first variant."""
    sample = draw_sample(folder, work)
    figures: Figures = {}
    views: Figures = {}
    for name, flags in variants.items():
        run = sample.train(f"{method}-{name.replace(' ', '-')}", seed, **{"method": method} | dict(flags))
        quality = sample.measure(run, seed)
        figures[name] = float(quality.plain["nDCG@5"] or 0)
        views = views or {view: float(metrics["nDCG@5"] or 0) for view, metrics in quality.views.items()}
    return figures, views
