"""Label filters: the labels that a request allows or denies."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Bool, Int

from recollect.service.memory.tables import Labels
from recollect.service.options import AnswerOptions
from recollect.service.predictor.scoring import Ranking


def describe_unknown(options: AnswerOptions, labels: Labels) -> Iterator[str]:
    """Yield a message for each filter with uids that are no labels."""
    for name, uids in (("allow", options.allow or ()), ("deny", options.deny)):
        if unknown := [uid for uid in uids if labels.position(uid) is None]:
            found = f"{len(unknown):,} of {len(uids):,} uids"
            yield f"--{name}: {found} are no labels of this version, such as {unknown[0]!r}"


class LabelFilter:
    """Admits the labels in `allow` (all labels if it is None), except the labels in `deny`.

    Args:
        allow: Label uids; None allows every label.
        deny: Label uids.
        labels: Labels of the memory. Unknown uids are ignored, because a client's list of labels can be older than the
            version that answers.

    Attributes:
        admits: Whether each label is admitted; removed labels are not.
        allows_all: Whether `allow` is None.
    """

    def __init__(self, allow: Iterable[str] | None, deny: Iterable[str], labels: Labels) -> None:
        self.admits: Bool[np.ndarray, " label"] = labels.present()
        if allow is not None:
            self.admits = np.zeros_like(self.admits)
            self.admits[labels.positions(allow)] = True
        self.admits[labels.positions(deny)] = False
        self.allows_all = allow is None

    @functools.cached_property
    def labels(self) -> Int[np.ndarray, " label"]:
        """Positions of the admitted labels, in rising order."""
        return np.flatnonzero(self.admits)

    def apply(self, ranking: Ranking) -> Ranking:
        """The entries of a ranking whose label is admitted."""
        admitted = self.admits[ranking.label]
        return Ranking(ranking.query[admitted], ranking.label[admitted], ranking.score[admitted])
