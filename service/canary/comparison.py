"""Compares an answer of a shadow with the answer of the current version."""

from __future__ import annotations

import json
from typing import NamedTuple


class Comparison(NamedTuple):
    """The comparison of two answers to one query.

    Attributes:
        same_top_label: Whether both have the same first label; also true if both have no label.
        overlap: Number of common labels, divided by the number of labels in the longer answer. 1 if both are empty.
        score_difference: Absolute difference of the first labels' scores; None unless both have a label.
    """

    same_top_label: bool
    overlap: float
    score_difference: float | None


def compare(answer: bytes, shadow_answer: bytes) -> Comparison:
    """Compare two answers to one query. An answer is a JSON object, the format of the answer cache."""
    ours, theirs = json.loads(answer)["labels"], json.loads(shadow_answer)["labels"]
    uids, shadow_uids = [label["uid"] for label in ours], [label["uid"] for label in theirs]
    most = max(len(uids), len(shadow_uids))
    overlap = len({*uids} & {*shadow_uids}) / most if most else 1.0
    difference = abs(ours[0]["score"] - theirs[0]["score"]) if ours and theirs else None
    return Comparison(uids[:1] == shadow_uids[:1], overlap, difference)
