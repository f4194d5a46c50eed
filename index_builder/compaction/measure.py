"""Measure the steps of a compaction on held-out texts, with exact search and the votes of the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.console import print_status
from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.index_builder.left_out_votes import left_out_votes, remove_filtered
from recollect.service.bundle.manifest import CompactionStep
from recollect.service.predictor.scoring import rank
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.left_out import choose_queries
from recollect.trainer.memory.memory import Memory
from recollect.trainer.metrics import report

METRICS = ("P@1", "R@100", "PSP@5")
_QUERIES, _SEED = 2_000, 0
# The memory that answers the queries lacks them, so it must have several times as many instances.
_INSTANCES_PER_QUERY = 5


def choose_measured(memory: Memory, run: Path) -> Int[np.ndarray, " query"]:
    """The queries of all measurements of a bundle: held-out instances, or other instances if none are held out.

    A memory without labelled instances has no queries.
    """
    try:
        most = max(1, min(_QUERIES, memory.plan.instances // _INSTANCES_PER_QUERY))
        return choose_queries(memory, run, most, _SEED)[0]
    except TrainingError:
        return np.empty(0, dtype=np.int64)


def measure_step(
    method: str, served: ServedMemory, trial: ServedMemory, rows: Int[np.ndarray, " query"]
) -> CompactionStep:
    """Measure the memory after one step. Without queries, the step has no metrics.

    Args:
        method: Name of the step.
        served: The memory of the bundle.
        trial: The memory that answers. It was made without the queries, or leaves them out one by one.
        rows: The queries.
    """
    plan, metrics = served.memory.plan, _quality(trial, rows) if len(rows) else {}
    return CompactionStep(
        method=method, instances=plan.instances, dim=plan.dim, key_bytes=served.key_bytes, metrics=metrics
    )


def print_steps(steps: list[CompactionStep]) -> None:
    """Print one line for each step, as an aligned table on standard error."""
    heading = ("compact", "instance keys", "dim", "MB of keys", *METRICS)
    rows = [heading, *(_cells(step) for step in steps)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print_status("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def points_lost(steps: list[CompactionStep]) -> Iterator[tuple[str, float]]:
    """Yield the points of each metric that all steps together lost."""
    for metric in METRICS:
        if metric in steps[0].metrics:
            yield metric, steps[0].metrics[metric] - steps[-1].metrics[metric]


def _quality(served: ServedMemory, rows: Int[np.ndarray, " query"]) -> dict[str, float]:
    full, values = served.full, served.values
    truth, filtered = (sets.to_csr(values.labels)[rows] for sets in (full.label_sets, full.filtered_labels))
    best = []
    for block, votes, _ in left_out_votes(served, rows, None):
        ranking = remove_filtered(rank(votes, values), filtered[block])
        best.append(pick(ranking.label, best_rows(ranking.query, len(rows[block])), -1))
    figures = report(np.concatenate(best), truth, served.label_counts, full.plan.instances)
    return {metric: value for metric in METRICS if (value := figures[metric]) is not None}


def _cells(step: CompactionStep) -> tuple[str, ...]:
    metrics = (f"{step.metrics[metric]:.2f}" if metric in step.metrics else "-" for metric in METRICS)
    return step.method, f"{step.instances:,}", str(step.dim), f"{step.key_bytes / 1e6:,.1f}", *metrics
