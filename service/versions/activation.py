"""Changing the current version, and seeing that every replica serves it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from service.errors import NotServedError, RedisError
from service.redis_client import RedisLink
from service.store.store import Store
from service.versions.current import SharedCurrent
from service.versions.replicas import Refusal, Report, replicas_of

_LOOK_SECONDS = 0.1
# How long no replica may be heard of before it is taken that there is none.
_SILENCE_SECONDS = 3.0


class Activation:
    """A store, the Redis that its replicas share, if they do, and what they tell."""

    def __init__(self, store: Store, link: RedisLink | None, stopping: Callable[[], bool] = lambda: False) -> None:
        self._store, self._stopping = store, stopping
        self._shared = SharedCurrent(store, link) if link else None
        self._refused_before: list[Refusal] = []
        self.replicas = replicas_of(store, link)

    def activate(self, version: str) -> None:
        """Make a version current.

        Raises:
            StoreError: If the store has no such version.
            BundleError: If its manifest is broken.
            RedisError: If the store has it current, but Redis does not answer.
        """
        self._remember_refusals()
        self._store.activate(version)
        self._announce(version)

    def rollback(self) -> str:
        """Return to the version that was current before, and name it.

        Raises:
            StoreError: If there is none.
            RedisError: If the store has it current, but Redis does not answer.
        """
        self._remember_refusals()
        version = self._store.rollback()
        self._announce(version)
        return version

    def wait(self, version: str, seconds: float) -> list[Report]:
        """Wait until every replica serves a version; what they say then.

        Raises:
            NotServedError: If one refuses it, or has not come to serve it in time: which, and why.
            RedisError: If what they say cannot be read.
        """
        start = time.monotonic()
        while True:
            reports = [report for report in self.replicas.reports() if report.state == "serving"]
            behind = [report for report in reports if report.version != version]
            waited = time.monotonic() - start
            if reports and not behind:
                return reports
            if behind and all(self._refuses(report, version) for report in behind):
                raise NotServedError(_told(version, behind, len(reports)))
            if self._stopping():
                raise NotServedError(f"{version} is current; who serves it is not waited for, as this service stops")
            if waited >= (seconds if reports else min(seconds, _SILENCE_SECONDS)):
                raise NotServedError(_told(version, behind, len(reports)))
            time.sleep(_LOOK_SECONDS)

    def _remember_refusals(self) -> None:
        """Refusals from before the switch: what was wrong then may have been mended."""
        with contextlib.suppress(RedisError):
            self._refused_before = [report.refused for report in self.replicas.reports() if report.refused]

    def _refuses(self, report: Report, version: str) -> bool:
        refused = report.refused
        return refused is not None and refused.version == version and refused not in self._refused_before

    def _announce(self, version: str) -> None:
        if self._shared is None:
            return
        try:
            self._shared.announce(version)
        except RedisError as error:
            raise RedisError(
                f"{version} is current in the store, but {error}; replicas follow the store meanwhile: run this again "
                "once Redis answers"
            ) from error


def _told(version: str, behind: list[Report], replicas: int) -> str:
    if not replicas:
        return (
            f"{version} is current, but no replica tells what it serves: none is started, none may write to the "
            "store's folder, or they share a Redis that --redis-url does not name"
        )
    lines = [f"{version} is current, but {len(behind)} of {replicas} replicas do not serve it:"]
    for report in behind:
        refused = report.refused.error if report.refused and report.refused.version == version else ""
        lines.append(f"  {report.replica} serves {report.version}: {refused or 'it has not come to it yet'}")
    return "\n".join(lines)
