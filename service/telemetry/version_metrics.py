"""Metrics of each open version, to compare a canary with the current version.

The label `version` has only the versions that this process has open, so the number of time series stays small.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.metrics_core import Metric

from recollect.service.settings import SHARED_METRICS

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_PREFIXES = ("recollect_version_", "recollect_shadow_")


class RequestMetrics(NamedTuple):
    """The metrics of one version for the requests that it answers or fails to answer."""

    answered: Counter
    deadline: Counter
    failed: Counter
    seconds: Histogram
    empty_answers: Counter
    top_score: Summary
    top_probability: Summary


class ShadowMetrics(NamedTuple):
    """The metrics of one shadow. Queries are counted, except for `skipped` and `failed`, which count requests."""

    compared: Counter
    same_top_label: Counter
    overlap: Summary
    score_difference: Summary
    skipped: Counter
    failed: Counter


class MetricsByVersion:
    """The metrics of all open versions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._shared = SHARED_METRICS in os.environ
        self._open: set[str] = set()

        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(f"recollect_{name}", help_, ("version", *labels), registry=registry)

        def summary(name: str, help_: str) -> Summary:
            return Summary(f"recollect_{name}", help_, ("version",), registry=registry)

        self._requests = counter(
            "version_requests_total", "Number of requests that the version answered or failed to answer.", "outcome"
        )
        self._seconds = Histogram(
            "recollect_version_request_seconds",
            "Time in which the version answered a request, with the time in the queue.",
            ("version",),
            registry=registry,
            buckets=_SECONDS,
        )
        self._empty = counter("version_empty_answers_total", "Number of answers without a label.")
        self._top_score = summary("version_top_score", "Score of the first label of an answer.")
        self._top_probability = summary(
            "version_top_probability", "Probability of the first label of an answer in the default order, unrestricted."
        )
        self._expected = Gauge(
            "recollect_version_expected_top_probability",
            "Mean probability of the first label on held-out texts, when the version was built.",
            ("version",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._compared = counter("shadow_compared_total", "Number of queries whose answers were compared.")
        self._same = counter("shadow_same_top_label_total", "Number of compared answers with the same first label.")
        self._overlap = summary("shadow_overlap", "Share of the labels that two compared answers have in common.")
        self._difference = summary(
            "shadow_score_difference", "Absolute difference of the first labels' scores in two compared answers."
        )
        self._skipped = counter("shadow_skipped_total", "Number of requests not compared, because the service is busy.")
        self._failed = counter("shadow_failed_total", "Number of requests that the shadow failed to answer.")
        shadow = (self._compared, self._same, self._overlap, self._difference, self._skipped, self._failed)
        own = (self._seconds, self._empty, self._top_score, self._top_probability, self._expected)
        self._with_version_only = (*own, *shadow)

    def requests_of(self, version: str, expected_top_probability: float | None = None) -> RequestMetrics:
        """The metrics of a version from now on, until `keep_only` removes them.

        Args:
            version: The version.
            expected_top_probability: Mean probability of the first label on held-out texts; None without probabilities.
        """
        self._open.add(version)
        if expected_top_probability is not None:
            self._expected.labels(version).set(expected_top_probability)
        return RequestMetrics(
            answered=self._requests.labels(version, "answered"),
            deadline=self._requests.labels(version, "deadline"),
            failed=self._requests.labels(version, "failed"),
            seconds=self._seconds.labels(version),
            empty_answers=self._empty.labels(version),
            top_score=self._top_score.labels(version),
            top_probability=self._top_probability.labels(version),
        )

    def shadow_of(self, version: str) -> ShadowMetrics:
        """The metrics of a shadow, until `keep_only` removes them."""
        return ShadowMetrics(
            compared=self._compared.labels(version),
            same_top_label=self._same.labels(version),
            overlap=self._overlap.labels(version),
            score_difference=self._difference.labels(version),
            skipped=self._skipped.labels(version),
            failed=self._failed.labels(version),
        )

    def keep_only(self, versions: Collection[str]) -> None:
        """Remove the metrics of all other versions, which are closed."""
        closed = self._open.difference(versions)
        self._open.intersection_update(versions)
        if self._shared:  # the files of shared metrics keep all values; `without_closed` leaves them out
            return
        for version in closed:
            for outcome in ("answered", "deadline", "failed"):
                self._requests.remove(version, outcome)
            for metric in self._with_version_only:
                with contextlib.suppress(KeyError):  # most versions have no metrics of a shadow
                    metric.remove(version)

    def without_closed(self, metrics: Iterator[Metric]) -> Iterator[Metric]:
        """Leave out the values of closed versions in the combined metrics of all workers."""
        for metric in metrics:
            if metric.name.startswith(_PREFIXES):
                metric.samples = [sample for sample in metric.samples if sample.labels["version"] in self._open]
            yield metric
