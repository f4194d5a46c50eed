"""RAE-XMC, Figure 2: quality against training time, compared with DEXML."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.proofs.claim import Figures
from benchmarks.proofs.small_runs import draw_sample

_STEPS = (20, 60)


def measure_time(folder: Path | None, work: Path, seed: int) -> Figures:
    """Measure `rae` with its memory, and `dexml` with its label keys, which is the dual encoder of its paper."""
    sample, figures = draw_sample(folder, work), {}
    for steps in _STEPS:
        for method in ("rae", "dexml"):
            start = time.process_time()
            run = sample.train(f"{method}-{steps}", seed, method=method, max_steps=steps)
            figures[f"{method} {steps} steps, CPU s"] = time.process_time() - start
            quality = sample.measure(run, seed)
            metrics = quality.tuned if method == "rae" else quality.plain
            figures[f"{method} {steps} steps"] = float(metrics["P@1"] or 0)
    return figures
