"""Entries: the changes of a live memory, in the order of their sequence numbers.

A bundle never changes. A version's live memory is its bundle with all entries of its log applied, one after the other.
An entry has everything that applying it needs, so that all replicas get the same memory from the same log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

Kind = Literal["instance", "label", "correction"]
# The kind of a part of the memory, and its uid.
Subject = tuple[Kind, str]


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

    kind: ClassVar[Kind] = "instance"
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

    kind: ClassVar[Kind] = "label"
    uid: str
    text: str
    vector: Float[np.ndarray, " dim"]


@dataclass(frozen=True, eq=False)
class PutCorrection:
    """Lower the score of a label for queries that are near a query.

    Attributes:
        uid: Uid of the correction.
        query: The query for which a user rejected the label.
        label: Uid of the label.
        vector: The unit vector of the query.
    """

    kind: ClassVar[Kind] = "correction"
    uid: str
    query: str
    label: str
    vector: Float[np.ndarray, " dim"]


@dataclass(frozen=True)
class Remove:
    """Remove the instance, the label or the correction with this uid.

    With a label, its key and its votes are removed, and the instances without another label.
    """

    kind: Kind
    uid: str


Entry = PutInstance | PutLabel | PutCorrection | Remove


def subject_of(entry: Entry) -> Subject:
    """The part of the memory that an entry inserts, replaces or removes."""
    return entry.kind, entry.uid


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
