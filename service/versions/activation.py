"""Waits until every replica has carried out an activation."""

from __future__ import annotations

import contextlib
import time

from recollect.service.errors import NotServedError, RedisError, StoreError
from recollect.service.store.activations import ActivationRecord
from recollect.service.store.store import Store
from recollect.service.versions.reports import Report, Reports

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
        NotServedError: If every replica that is behind refuses a version, the versions are not open in time, or there
            is another activation; names the replicas and the reasons.
        OSError, RedisError: If the reports cannot be read until the time is over.
    """
    start = time.monotonic()
    while True:
        waited, found, error = time.monotonic() - start, list[Report](), None
        try:
            found = reports.read()
        except (OSError, RedisError) as failure:
            error = failure
        behind = [each for each in found if each.generation != record.generation]
        if not behind and len(found) >= (replicas or 1):
            return found
        _require_last(store, record)
        refused = bool(behind) and all(each.refused == record.generation for each in behind)
        none_runs = not found and error is None and replicas is None
        if refused or waited >= (min(seconds, _NO_REPLICA_SECONDS) if none_runs else seconds):
            raise error or NotServedError(_describe(record, found, behind, replicas or 0))
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


def _describe(record: ActivationRecord, found: list[Report], behind: list[Report], replicas: int) -> str:
    """The replicas that have not carried out an activation, with the reasons."""
    fact = f"{record.candidate} is the candidate" if record.candidate else f"{record.version} is current"
    expected = max(len(found), replicas)
    if not found:
        return (
            f"{fact}, but no replica reports: none is running, none may write to the store's folder, "
            "or the replicas share a Redis that --redis-url does not name"
        )
    left = expected - len(found) + len(behind)
    lines = [f"{fact}, but {left} of {expected} replicas have not opened it:"]
    for each in behind:
        serves = f"serves {each.version}" if each.version else "serves no version"
        late = f"it has not opened the new version yet (generation {each.generation})"
        lines.append(f"  {each.replica} {serves}: {each.problem if each.refused == record.generation else late}")
    if expected > len(found):
        lines.append(f"  only {len(found)} of {expected} replicas report")
    return "\n".join(lines)
