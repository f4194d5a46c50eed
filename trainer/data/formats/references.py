"""References: the labels that the rows of a file name, by their uids or by their positions."""

from __future__ import annotations

import functools
from pathlib import Path

import pyarrow.compute as pc

from recollect.core.texts import integer_as_uid
from recollect.trainer.data.formats.fields import TextRule, check_position
from recollect.trainer.data.split import Entries
from recollect.trainer.errors import DatasetError


class LabelReferences:
    """Finds the positions of the labels that a file names.

    An integer is the uid with its digits. If there is no such uid, it is a position, from 0, unless it may be a wrong
    uid: all uids are integers, or some uid is an integer below the number of labels.

    Args:
        rule: Whether unknown labels are refused or dropped.
    """

    def __init__(self, labels: Entries, path: Path, rule: TextRule) -> None:
        self._labels, self._path, self._rule = labels, path, rule
        self._unknown, self._deprecated, self._first_unknown = 0, 0, ""

    def find(self, references: object, field: str, where: str) -> list[int]:
        """The positions of the labels that a row names.

        Raises:
            DatasetError: If a label is unknown, unless unknown labels are dropped, or a reference has two readings.
        """
        if not isinstance(references, list):
            raise DatasetError(f"{where}: expected {field!r} to be a list, found {references!r}")
        found = (self._find(reference, where) for reference in references)
        return [position for position in found if position is not None]

    def report(self) -> None:
        """Report the number of references that were dropped."""
        if self._unknown:
            self._rule.report_unknown(self._path, self._unknown, self._first_unknown, self._deprecated)

    def _find(self, reference: object, where: str) -> int | None:
        uid = integer_as_uid(reference)
        if not isinstance(uid, str):
            raise DatasetError(f"{where}: expected the uid or the position of a label, found {reference!r}")
        if uid is not reference and uid not in self._positions and self._reads_positions:
            return check_position(reference, len(self._labels), where)
        position = self._positions.get(uid)
        if position is None:
            if self._rule.unknown_labels == "refuse":
                raise DatasetError(f"{where}: {self._describe_unknown(reference)}")
            self._unknown += 1
            self._deprecated += uid in self._rule.deprecated
            self._first_unknown = self._first_unknown or f"{where}: {uid}"
        return position

    def _describe_unknown(self, reference: object) -> str:
        if isinstance(reference, int) and 0 <= reference < len(self._labels):
            return (
                f"the label {reference} is no uid; as a position, it is the label "
                f"{self._labels.uids[reference].as_py()!r}, but uids of this dataset are integers too: write uids"
            )
        if reference in self._rule.deprecated:
            return (
                f"label uid {reference!r} is deprecated in the vocabulary; expected a current one: replace it, or "
                "choose --unknown-labels drop"
            )
        return (
            f"label uid {str(reference)!r} is unknown; expected one of the {len(self._labels):,} uids of the labels: "
            "correct it, add the label, or choose --unknown-labels drop"
        )

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {uid: position for position, uid in enumerate(self._labels.uids.to_pylist())}

    @functools.cached_property
    def _reads_positions(self) -> bool:
        digits = pc.match_substring_regex(self._labels.uids, r"^[+-]?[0-9]{1,18}$")
        integers = [int(uid) for uid in self._labels.uids.filter(digits).to_pylist()]
        labels = len(self._labels)
        return len(integers) < labels and not any(0 <= each < labels for each in integers)
