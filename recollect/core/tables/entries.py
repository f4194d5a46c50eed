"""Entries: the changes of a live memory, in the order of their sequence numbers.

A bundle never changes. A version's live memory is its bundle with all entries of its log applied, one after the other.
An entry has everything that applying it needs, so that all replicas get the same memory from the same log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["instance", "label", "correction"]
# The kind of a part of the memory, and its uid.
Subject = tuple[Kind, str]


class Record(BaseModel):
    """Fields that a user or a log states. Unknown fields, values of other types and infinite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class InstanceFields(Record):
    """What a live instance has besides its uid, text and labels: fields of JSON types, each with a default.

    A field is declared here, and nowhere else. Requests, files for `recollect extend`, Python, the log, snapshots,
    `GET /memory/instances/{uid}` and `recollect export` have it. A bundle has no place for it, so a compaction keeps an
    instance live that has another value than the default.
    """

    weight: float = Field(1.0, gt=0, le=1e9, description="the instance votes as this number of equal instances do")

    @classmethod
    def of(cls, row: InstanceFields) -> InstanceFields:
        """These fields of a record that has others, too."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields})

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True, eq=False)
class PutInstance:
    """Insert an instance, or replace the instance with this uid.

    Attributes:
        uid: Uid of the instance.
        text: Its text.
        labels: Uids of its labels, at least one. Each label is in the memory when the entry is applied.
        vector: The unit vector of the text, as the encoder gives it.
        fields: Its other fields.
    """

    kind: ClassVar[Kind] = "instance"
    uid: str
    text: str
    labels: Sequence[str]
    vector: Float[np.ndarray, " dim"]
    fields: InstanceFields = InstanceFields()


@dataclass(frozen=True, eq=False)
class PutLabel:
    """Insert a label, or replace the text, the key and the fields of the label with this uid.

    Attributes:
        uid: Uid of the label.
        text: Its text.
        vector: The unit vector of the text, as the encoder gives it.
        fields: Its `LabelFields`, those that it has.
    """

    kind: ClassVar[Kind] = "label"
    uid: str
    text: str
    vector: Float[np.ndarray, " dim"]
    fields: Mapping[str, Any] = field(default_factory=dict)


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
