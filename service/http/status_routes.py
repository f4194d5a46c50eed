"""The routes that describe a process: its version, its health and its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Response

from recollect.core.errors import DrainingError
from recollect.service.http.problems import ProblemError, documented
from recollect.service.http.schemas import Health, VersionResponse
from recollect.service.redis_client import RedisClient
from recollect.service.serving.batcher import Batcher
from recollect.service.telemetry.metrics import CONTENT_TYPE, Metrics
from recollect.service.versions.open_versions import OpenVersions


@dataclass(frozen=True)
class StatusRoutes:
    """The handlers of the paths `/version`, `/health/live`, `/health/ready` and `/metrics`."""

    versions: OpenVersions
    batcher: Batcher
    redis: RedisClient | None
    process_metrics: Metrics

    def register(self, router: APIRouter, with_metrics: bool) -> None:
        router.add_api_route("/version", self.version, responses=documented(401, 503))
        for path, handler in (("/health/live", self.health_live), ("/health/ready", self.health_ready)):
            router.add_api_route(path, handler, response_model_exclude_none=True, responses=documented(503))
        if with_metrics:
            text = {"content": {"text/plain": {}}, "description": "Prometheus's text format."}
            router.add_api_route("/metrics", self.metrics, responses={200: text})

    async def version(self, response: Response) -> VersionResponse:
        """Return the version that this replica serves, and the time since which it serves this version."""
        with self.versions.lease() as predictor:
            current = self.versions.require_current()
            manifest, pays = current.predictor.manifest, predictor.memory.snapshot.compaction_pays
        response.headers["X-Index-Version"] = manifest.version
        fields = {name: getattr(manifest, name) for name in VersionResponse.model_fields if hasattr(manifest, name)}
        return VersionResponse(since=current.since, compaction_recommended=pays, **fields)

    async def health_live(self) -> Health:
        """Return 200 if the process can answer; 503 if a batch hangs, so that only a new process can."""
        self._require_no_hung_batch()
        return Health(status="live")

    async def health_ready(self) -> Health:
        """Return 200 if a bundle is open and has answered its golden queries, and no batch hangs.

        `degraded` lists the components that do not work, with the reason. Without the engine of its keys or
        the server of its vectors, the current version cannot answer, so the replica is not ready.
        """
        if self.versions.draining:
            raise DrainingError
        self._require_no_hung_batch()
        self.versions.require_current()
        if (problem := self.versions.problem()) is not None:
            raise problem
        return Health(status="ready", degraded=(self.redis.problems or None) if self.redis else None)

    def _require_no_hung_batch(self) -> None:
        if self.batcher.hung:
            raise ProblemError(503, "a batch of queries does not end; the process is going to be replaced", "hung")

    def metrics(self) -> Response:  # not async: on a thread, because many workers take time
        """Return the metrics of all workers: requests, latencies, queue, batches, cached answers, swaps and version."""
        return Response(self.process_metrics.exposition(), media_type=CONTENT_TYPE)
