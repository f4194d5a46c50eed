"""The instances of a memory: their labels, the instances of each label, their uids and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from recollect.service.bundle.strings import Strings, StringTable
from recollect.service.bundle.values import SparseValues, SparseVoters, Values, Voters


@runtime_checkable
class UidFinder(Protocol):
    """Finds instances by their uids."""

    def find(self, uid: str) -> int | None:
        """The row of a uid: the first one if there are several, None if there is none."""

    def expect(self, uids: Sequence[str]) -> None:
        """Prepare for `find` of these uids: an engine reads all of them together."""


@dataclass(frozen=True, eq=False)
class Instances:
    """The instances of a memory. An instance is stated by its row.

    Attributes:
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
        uids: Uids of the instances.
        texts: Their texts.
        finder: Finds instances by their uids; None if that needs an index, which is built at the first change.
    """

    values: Values
    voters: Voters
    uids: Strings
    texts: Strings
    finder: UidFinder | None = None


@dataclass(frozen=True, eq=False)
class MappedInstances(Instances):
    """Instances in the files of a bundle, which are mapped into memory."""

    values: SparseValues
    voters: SparseVoters
    uids: StringTable
    texts: StringTable
