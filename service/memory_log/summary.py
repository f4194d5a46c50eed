"""A summary of a log: what its entries have added to a bundle, and removed from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from recollect.service.memory.entries import LoggedEntry, is_put, subject_of


@dataclass(frozen=True)
class Summary:
    """The entries of a log after the last one that a bundle contains.

    Attributes:
        entries: Number of entries.
        instances: Number of inserted and replaced instances, without those that were removed again.
        labels: Number of inserted and replaced labels, likewise.
        removed_instances: Number of removed instances.
        removed_labels: Number of removed labels.
        corrections: Number of corrections.
        oldest: Time of the oldest entry; None if there is none.
    """

    entries: int
    instances: int
    labels: int
    removed_instances: int
    removed_labels: int
    corrections: int
    oldest: datetime | None


def summarise(entries: Iterable[LoggedEntry]) -> Summary:
    """Count the subjects of entries by the last entry of each subject."""
    found: dict[str, dict[str, bool]] = {"instance": {}, "label": {}, "correction": {}}
    count, oldest = 0, None
    for logged in entries:
        count += 1
        oldest = logged.seconds if oldest is None else min(oldest, logged.seconds)
        kind, uid = subject_of(logged.entry)
        found[kind][uid] = is_put(logged.entry)
    present = {kind: sum(uids.values()) for kind, uids in found.items()}
    return Summary(
        entries=count,
        instances=present["instance"],
        labels=present["label"],
        removed_instances=len(found["instance"]) - present["instance"],
        removed_labels=len(found["label"]) - present["label"],
        corrections=present["correction"],
        oldest=None if oldest is None else datetime.fromtimestamp(oldest, UTC),
    )
