"""Shadow requests: after a response, the canary answers the same queries again, and both answers are compared.

Nobody waits for a shadow's answer. So the queries are answered one by one, and only while no other query waits and a
thread is idle; otherwise they are skipped and counted. They use no cache and no quota. Their texts are never logged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from pydantic_core import to_json

from recollect.service.canary.comparison import Comparison, compare
from recollect.service.canary.trial import Trial
from recollect.service.errors import ServiceError
from recollect.service.predictor.answers import Answers
from recollect.service.serving.batcher import Batcher
from recollect.service.telemetry.metrics import Metrics
from recollect.service.telemetry.version_metrics import ShadowMetrics
from recollect.service.versions.open_versions import Lease, OpenVersions

log = structlog.get_logger(__name__)

# Time for sending the response, and for the thread that computed it to become idle.
_DELAY_SECONDS = 0.01


class Shadow:
    """Compares the answers of the current version with those of the canary, on the event loop.

    Args:
        versions: The open versions, with the canary.
        batcher: Computes the answers of the canary.
        metrics: Counts the comparisons.
        max_seconds: Time after which the canary has failed to answer a query.
    """

    def __init__(self, versions: OpenVersions, batcher: Batcher, metrics: Metrics, max_seconds: float) -> None:
        self._versions, self._batcher, self._metrics = versions, batcher, metrics
        self._max_seconds = max_seconds
        self._computing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def compare_later(
        self, trial: Trial, queries: Sequence[str], chosen: Mapping[str, Any], answers: Sequence[bytes]
    ) -> None:
        """Compare the answers to a request in the background.

        Args:
            trial: The trial of the canary.
            queries: The queries of the request.
            chosen: Arguments of `resolve_options` that the caller chose.
            answers: The answer of the current version to each query, as a JSON object.
        """
        task = asyncio.create_task(self._compare_all(trial, queries, chosen, answers))
        self._tasks.add(task)  # the event loop keeps only a weak reference to a task
        task.add_done_callback(self._tasks.discard)

    async def _compare_all(
        self, trial: Trial, queries: Sequence[str], chosen: Mapping[str, Any], answers: Sequence[bytes]
    ) -> None:
        await asyncio.sleep(_DELAY_SECONDS)
        for query, answer in zip(queries, answers, strict=True):
            lease = self._versions.lease_canary(trial)
            if lease is None:  # the trial has ended
                return
            metrics = self._metrics.by_version.shadow_of(trial.canary.version)
            with lease:
                if self._is_busy():
                    metrics.skipped.inc()
                    continue
                self._computing = True
                try:
                    await self._compare(trial, lease, query, chosen, answer, metrics)
                finally:
                    self._computing = False

    async def _compare(
        self,
        trial: Trial,
        lease: Lease,
        query: str,
        chosen: Mapping[str, Any],
        answer: bytes,
        metrics: ShadowMetrics,
    ) -> None:
        start = time.perf_counter()
        try:
            options = dataclasses.replace(lease.predictor.resolve(**chosen), explain=False)
            future = self._batcher.submit(lease, [query], options, functools.partial(_compare_answers, answer))
            comparison = await asyncio.wait_for(future, self._max_seconds)
        except ServiceError:  # the queue is full, the service is stopping, or the shadow lacks probabilities
            metrics.skipped.inc()
        except Exception as error:
            trial.record(trial.canary.version, None)
            metrics.failed.inc()
            log.warning("shadow_failed", version=trial.canary.version, error=type(error).__name__)  # no query text
        else:
            trial.record(trial.canary.version, time.perf_counter() - start)
            _count(comparison, metrics)

    def _is_busy(self) -> bool:
        batcher = self._batcher
        return self._computing or batcher.queries_waiting > 0 or batcher.busy_threads >= batcher.threads


def _compare_answers(answer: bytes, shadow: Answers) -> Comparison:
    """Compare two answers, on the thread that computed the second one."""
    return compare(answer, to_json(shadow.answers[0].to_dict()))


def _count(comparison: Comparison, metrics: ShadowMetrics) -> None:
    metrics.compared.inc()
    metrics.same_top_label.inc(comparison.same_top_label)
    metrics.overlap.observe(comparison.overlap)
    if comparison.score_difference is not None:
        metrics.score_difference.observe(comparison.score_difference)
