"""Waits until every replica has carried out an activation."""

from __future__ import annotations

import contextlib
import time

from recollect.service.errors import NotServedError, RedisError, StoreError
from recollect.service.store.activations import ActivationRecord
from recollect.service.store.store import Store
from recollect.service.versions.reports import Report, Reports, Seen

_POLL_SECONDS = 0.1
# If no replica reports for this time, `wait` concludes that no replica is running.
_NO_REPLICA_SECONDS = 3.0


def wait_for_replicas(
    store: Store, reports: Reports, record: ActivationRecord, seconds: float, replicas: int | None = None
) -> list[Report]:
    """Wait until every replica has carried out an activation, and return the reports.

    Args:
        store: The store of the replicas.
        reports: The reports of the replicas.
        record: The record that the activation wrote.
        seconds: Maximum time to wait.
        replicas: Number of replicas that must carry it out. None means all replicas that report.

    Raises:
        NotServedError: If a replica refuses a version, stops to report, or does not open the versions in time, or
            if there is another activation; names the replicas and the reasons.
        OSError, RedisError: If the reports cannot be read until the time is over.
    """
    start, progress = time.monotonic(), _Progress(record, replicas)
    while True:
        waited, error = time.monotonic() - start, None
        try:
            progress.update(reports.read())
        except (OSError, RedisError) as failure:
            error = failure
        if error is None and progress.complete:
            return progress.done
        _require_last(store, record)
        none_runs = not progress.expected and replicas is None
        if progress.failed or waited >= (min(seconds, _NO_REPLICA_SECONDS) if none_runs else seconds):
            raise error or NotServedError(progress.describe())
        time.sleep(_POLL_SECONDS)


def _require_last(store: Store, record: ActivationRecord) -> None:
    last = None
    with contextlib.suppress(StoreError, OSError):  # the next check tries again
        last = store.activation()
    if last is not None and last.generation > record.generation:
        raise NotServedError(
            f"{record.version} is not current any more: {last.by} made {last.version} current "
            f"(generation {last.generation}); see `recollect log`"
            if last.version != record.version
            else f"{last.by} changed the candidate meanwhile (generation {last.generation}); see `recollect log`"
        )


class _Progress:
    """The replicas that must carry out an activation, and their reports.

    Attributes:
        expected: The replicas that have reported since the beginning, without those that have stopped.
        done: The reports of the replicas that have carried out the activation.
    """

    def __init__(self, record: ActivationRecord, replicas: int | None) -> None:
        self._record, self._replicas = record, replicas
        self._behind: list[Report] = []
        self._lost: set[str] = set()
        self.expected: set[str] = set()
        self.done: list[Report] = []

    def update(self, seen: list[Seen]) -> None:
        """Process the newest reports."""
        reports = {each.report.replica: each.report for each in seen}
        fresh = {each.report.replica for each in seen if each.fresh}
        self.expected = (self.expected | fresh) & reports.keys()
        if self._replicas is not None:  # the number decides, so a replica that was lost may be replaced
            self.expected &= fresh
        self._lost = self.expected - fresh
        self.done, self._behind = [], []
        for name in sorted(self.expected):
            is_done = name in fresh and reports[name].generation == self._record.generation
            (self.done if is_done else self._behind).append(reports[name])

    @property
    def complete(self) -> bool:
        return not self._behind and len(self.done) >= (self._replicas or 1)

    @property
    def failed(self) -> bool:
        """Whether every replica that has not carried out the activation refuses it or is lost."""
        refused = self._record.generation
        return bool(self._behind) and all(
            each.refused == refused or each.replica in self._lost for each in self._behind
        )

    def describe(self) -> str:
        """The replicas that have not carried out the activation, with the reasons."""
        record = self._record
        fact = f"{record.candidate} is the candidate" if record.candidate else f"{record.version} is current"
        expected = max(len(self.expected), self._replicas or 0)
        if not self.expected:
            return (
                f"{fact}, but no replica reports: none is running, none may write to the store's folder, "
                "or the replicas share a Redis that --redis-url does not name"
            )
        lines = [f"{fact}, but {expected - len(self.done)} of {expected} replicas have not opened it:"]
        lines += [f"  {each.replica} {self._reason(each)}" for each in self._behind]
        if expected > len(self.expected):
            lines.append(f"  only {len(self.expected)} of {expected} replicas report")
        return "\n".join(lines)

    def _reason(self, report: Report) -> str:
        if report.replica in self._lost:
            return "stopped reporting: it was killed, or it hangs"
        serves = f"serves {report.version}" if report.version else "serves no version"
        if report.refused == self._record.generation:
            return f"{serves}: {report.problem}"
        return f"{serves}: it has not opened the new version yet (generation {report.generation})"
