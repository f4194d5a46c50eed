"""Bootstrap: how far a metric would move with other test texts of the same kind (Efron, 1979).

Each resample draws as many queries as there are, with replacement. All metrics see the same resamples, so the
difference of two metrics is paired: queries that are hard for both add no spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import sparse

_RESAMPLES, _SEED = 1_000, 0
# Percentiles that enclose 95% of the resamples.
_PERCENTILES = 2.5, 97.5
# Largest number of draws that are in memory at once. Macro F1 has two sums for each of about ten labels a query, so a
# draw needs 160 bytes.
_BLOCK_DRAWS = 1_000_000


@dataclass(frozen=True)
class Statistics:
    """Metrics that depend on the queries only by sums over them. A resample changes how often a query is counted."""

    names: Sequence[str]
    terms: Float[np.ndarray, "query term"] | sparse.csr_array  # what each query adds to each sum
    finish: Callable[[Float[np.ndarray, "resample term"]], Float[np.ndarray, "resample metric"]]
    limit: float = 100.0  # greatest possible value of the metrics; the minimum is 0

    def values(self, counts: Float[np.ndarray, "resample query"]) -> Float[np.ndarray, "resample metric"]:
        """The metrics of each resample; `counts` is how often it has drawn each query."""
        return self.finish(np.asarray((self.terms.T @ counts.T).T))


def ratios(terms: dict[str, tuple[Float[np.ndarray, " query"], Float[np.ndarray, " query"]]]) -> Statistics:
    """Metrics that are the ratio of two sums over the queries; 0 where the second sum is 0."""

    def divide(sums: Float[np.ndarray, "resample term"]) -> Float[np.ndarray, "resample metric"]:
        above, below = np.split(sums, 2, axis=1)
        return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below != 0))

    columns = [part for parts in zip(*terms.values(), strict=True) for part in parts]
    return Statistics(list(terms), np.stack(columns, axis=1).astype(np.float64), divide)


def means(scores: dict[str, Float[np.ndarray, " query"]]) -> Statistics:
    """Metrics that are means over the queries."""
    return ratios({name: (values, np.ones(len(values))) for name, values in scores.items()})


@dataclass(frozen=True)
class Sampled:
    """A metric of all queries, and of each resample. A difference of two metrics is sampled too."""

    value: float
    resampled: Float[np.ndarray, " resample"]
    minimum: float = 0.0
    limit: float = 100.0

    def __sub__(self, other: Sampled) -> Sampled:
        return Sampled(self.value - other.value, self.resampled - other.resampled, -other.limit, self.limit)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval.

        It has the spread of the resamples around their mean, but is placed around the metric of all queries. A resample
        lacks some queries and has others twice, so its calibration error is too high and its macro F1 too low.
        """
        low, high = np.percentile(self.resampled - self.resampled.mean(), _PERCENTILES)
        return max(self.minimum, self.value + float(low)), min(self.limit, self.value + float(high))


def bootstrap(groups: Sequence[Sequence[Statistics]]) -> list[dict[str, Sampled]]:
    """Measure the same queries again in 1,000 resamples, which are the same in every call.

    A group has for example the metrics of one order of the labels. Return the metrics of each group by name.
    """
    every = [statistics for group in groups for statistics in group]
    if not every:
        return [{} for _ in groups]
    queries = every[0].terms.shape[0]
    whole = [statistics.values(np.ones((1, queries)))[0] for statistics in every]
    blocks = ([statistics.values(counts) for statistics in every] for counts in _draws(queries))
    resampled = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    sampled = iter(
        [
            (name, Sampled(float(value), column, limit=statistics.limit))
            for name, value, column in zip(statistics.names, values, columns.T, strict=True)
        ]
        for statistics, values, columns in zip(every, whole, resampled, strict=True)
    )
    return [dict(pair for _ in group for pair in next(sampled)) for group in groups]


def _draws(queries: int) -> Iterator[Float[np.ndarray, "resample query"]]:
    """How often each resample draws each query, in blocks of resamples."""
    rng = np.random.default_rng(_SEED)
    block = max(1, _BLOCK_DRAWS // queries)
    for first in range(0, _RESAMPLES, block):
        resamples = min(block, _RESAMPLES - first)
        drawn = rng.integers(queries, size=(resamples, queries)) + np.arange(resamples)[:, None] * queries
        counts = np.bincount(drawn.ravel(), minlength=resamples * queries)
        yield counts.reshape(resamples, queries).astype(np.float64)
