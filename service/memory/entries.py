"""Entries: the changes of a live memory, in the order of their sequence numbers.

A bundle never changes. A version's live memory is its bundle with all entries of its log applied, one after the other.
An entry has everything that applying it needs, so that all replicas get the same memory from the same log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class PutInstance:
    """Insert an instance, or replace the instance with this uid.

    Attributes:
        uid: Uid of the instance.
        text: Its text.
        labels: Uids of its labels, at least one. Each label is in the memory when the entry is applied.
        vector: The unit vector of the text, as the encoder gives it.
        weight: It votes as this number of equal instances do; positive.
    """

    uid: str
    text: str
    labels: Sequence[str]
    vector: Float[np.ndarray, " dim"]
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class PutLabel:
    """Insert a label, or replace the text and the key of the label with this uid.

    Attributes:
        uid: Uid of the label.
        text: Its text.
        vector: The unit vector of the text, as the encoder gives it.
    """

    uid: str
    text: str
    vector: Float[np.ndarray, " dim"]


@dataclass(frozen=True)
class RemoveInstance:
    """Remove the instance with this uid."""

    uid: str


@dataclass(frozen=True)
class RemoveLabel:
    """Remove the label with this uid, its key and its votes. An instance without another label is removed, too."""

    uid: str


@dataclass(frozen=True, eq=False)
class PutCorrection:
    """Lower the score of a label for queries that are near a query.

    Attributes:
        uid: Uid of the correction.
        query: The query for which a user rejected the label.
        label: Uid of the label.
        vector: The unit vector of the query.
    """

    uid: str
    query: str
    label: str
    vector: Float[np.ndarray, " dim"]


@dataclass(frozen=True)
class RemoveCorrection:
    """Remove the correction with this uid."""

    uid: str


Entry = PutInstance | PutLabel | RemoveInstance | RemoveLabel | PutCorrection | RemoveCorrection


# The kind of a subject, "instance", "label" or "correction", and its uid.
Subject = tuple[str, str]


def subject_of(entry: Entry) -> Subject:
    """The part of the memory that an entry inserts, replaces or removes."""
    if isinstance(entry, PutInstance | RemoveInstance):
        return "instance", entry.uid
    return "label" if isinstance(entry, PutLabel | RemoveLabel) else "correction", entry.uid


def is_put(entry: Entry) -> bool:
    """Whether an entry inserts or replaces its subject. Otherwise it removes its subject."""
    return isinstance(entry, PutInstance | PutLabel | PutCorrection)


@dataclass(frozen=True)
class LoggedEntry:
    """An entry in a log.

    Attributes:
        sequence: Its number in the log of its version; the first one is 1.
        seconds: Time of the write, in seconds since 1970 (UTC).
        entry: The change.
    """

    sequence: int
    seconds: float
    entry: Entry
