"""A view: the memory of a version after some entries of its log. A view never changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recollect.service.lexical.index import LexicalIndex
from recollect.service.memory.corrections import Corrections
from recollect.service.memory.layers import LiveLabels, LiveNames, LiveStrings, LiveValues, LiveVoters
from recollect.service.memory.live_table import Ends, LiveRows
from recollect.service.memory.uid_index import UidIndex


@dataclass(frozen=True, eq=False)
class Status:
    """Facts about the live entries of a memory.

    Attributes:
        instances: Number of instances that are present.
        labels: Number of labels that are present.
        corrections: Number of corrections that are present.
        live_keys: Number of live keys of instances, labels and corrections, with those that were replaced or removed.
        skipped: Number of entries that named a label that the version does not have.
        oldest_seconds: Time of the oldest entry, in seconds since 1970; None without entries.
    """

    instances: int
    labels: int
    corrections: int
    live_keys: int
    skipped: int
    oldest_seconds: float | None


@dataclass(frozen=True, eq=False)
class View:
    """The tables of a memory with live entries.

    Attributes:
        sequence: Sequence number of the last entry.
        status: Facts about the entries.
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
        labels: The labels.
        instance_uids: Uids of the instances, by number.
        instance_texts: Their texts.
        instances: The live instances.
        corrections: The corrections of labels.
        instance_ends: The ends of the instances of the bundle.
        label_key_ends: The ends of the label keys of the bundle.
        words: The word indexes; None if the bundle has none.
        names: The names of the labels; None if the bundle has no ranker.
        uids: The uids of the bundle's instances.
    """

    sequence: int
    status: Status
    values: LiveValues
    voters: LiveVoters
    labels: LiveLabels
    instance_uids: LiveStrings
    instance_texts: LiveStrings
    instances: LiveRows
    corrections: Corrections
    instance_ends: Ends
    label_key_ends: Ends
    words: LexicalIndex | None
    names: LiveNames | None
    uids: UidIndex

    def instance(self, uid: str) -> int | None:
        """The number of the present instance with a uid."""
        if (row := self.instances.find(uid)) is not None:
            return row + len(self.instance_ends.ends)
        row = self.uids.find(uid)
        return row if row is not None and self.instance_ends.present(np.array(row)) else None
