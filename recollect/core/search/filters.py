"""Label filters: the labels that a request allows or denies, and the keys that vote for these labels.

A search finds the keys near a query, but perhaps all of these keys vote for labels that the filter excludes. So it may
find no key that votes for a label that the filter admits. The file `voter_indices.npy` lists the instances that vote
for each label; each label's own key also votes for it. If the admitted labels have few votes, all of their keys are
compared with the query. If the admitted labels have many votes, a search for more keys usually finds enough labels,
and all keys of the labels are compared only if this search does not.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.bundle.manifest import MOST_KEYS
from recollect.core.neighbours import Found, Neighbours
from recollect.core.options import AnswerOptions
from recollect.core.search.searcher import Searcher
from recollect.core.tables.tables import Labels, Voters

# Up to this number of votes for the admitted labels, a comparison with all of their keys costs less than a search for
# many keys.
MAX_CHEAP_VOTES = 16_384
# A filtered search that finds too few labels is repeated with top_b multiplied by this factor, up to `MOST_KEYS` keys.
_TOP_B_GROWTH = 4
# Number of votes that are in memory at the same time.
_BLOCK_VOTES = 1 << 20


def describe_unknown(options: AnswerOptions, labels: Labels) -> Iterator[str]:
    """Yield a message for each filter with uids that are no labels."""
    for name, uids in (("allow", options.allow or ()), ("deny", options.deny)):
        if unknown := [uid for uid in uids if labels.position(uid) is None]:
            found = f"{len(unknown):,} of {len(uids):,} uids"
            yield f"--{name}: {found} are no labels of this version, such as {unknown[0]!r}"


class LabelFilter:
    """Admits the labels in `allow` (all labels if it is None), except the labels in `deny`.

    Args:
        labels: Labels of the memory. Unknown uids are ignored, because a client's list of labels can be older than the
            version that answers.

    Attributes:
        admits: Whether each label is admitted; removed labels are not.
    """

    def __init__(self, allow: Iterable[str] | None, deny: Iterable[str], labels: Labels) -> None:
        self.admits: Bool[np.ndarray, " label"] = labels.present()
        if allow is not None:
            self.admits = np.zeros_like(self.admits)
            self.admits[labels.positions(allow)] = True
        self.admits[labels.positions(deny)] = False
        self.allows_all = allow is None
        self.admits_all = self.allows_all and not deny

    @functools.cached_property
    def labels(self) -> Int[np.ndarray, " label"]:
        """Positions of the admitted labels, in rising order."""
        return np.flatnonzero(self.admits)


class AdmittedKeys:
    """Finds the keys that vote for the labels that a filter admits."""

    def __init__(self, voters: Voters, searcher: Searcher) -> None:
        self._voters, self._searcher = voters, searcher

    def find(
        self,
        vector: Float[np.ndarray, "1 dim"],
        found: Found,
        count_labels: Callable[[Found], int],
        options: AnswerOptions,
        label_filter: LabelFilter,
    ) -> Found:
        """The keys whose votes rank the admitted labels: those of a larger search, or all keys that vote for them.

        `count_labels` counts the admitted labels that get a vote from some keys.
        """
        top_b, lambda_, instances = options.top_b, options.lambda_, self._searcher.instances.keys
        nearest = found.nearest(top_b, lambda_, instances)
        max_top_b = min(self._searcher.keys, MOST_KEYS)
        enough, larger = min(options.top_k, self.count_rankable(label_filter, lambda_)), found
        is_cheap = self.is_cheap(label_filter, lambda_)
        while not is_cheap:
            if count_labels(larger) >= enough:
                return larger
            if top_b >= max_top_b:
                break
            top_b = min(top_b * _TOP_B_GROWTH, max_top_b)
            searched = self._searcher.search(vector, top_b, lambda_)
            larger = dataclasses.replace(found, admitted=searched.nearest(top_b, lambda_, instances))
        all_keys = self._compare_all(vector[0], nearest, label_filter.labels, lambda_)
        return dataclasses.replace(found, admitted=all_keys)

    def is_cheap(self, label_filter: LabelFilter, lambda_: float) -> bool:
        """Whether the admitted labels have so few votes that a comparison with all keys is faster than a search."""
        if not label_filter.allows_all:
            return self._count_votes(label_filter.labels, lambda_) <= MAX_CHEAP_VOTES
        all_votes = self._voters.pairs * (lambda_ > 0) + len(label_filter.admits) * (lambda_ < 1)
        denied = np.flatnonzero(~label_filter.admits)
        return all_votes - self._count_votes(denied, lambda_) <= MAX_CHEAP_VOTES

    def count_rankable(self, label_filter: LabelFilter, lambda_: float) -> int:
        """The number of admitted labels that get a vote from at least one key. At lambda 1, label keys have no vote."""
        labels = label_filter.labels
        return int(np.count_nonzero(self._voters.counts(labels))) if lambda_ == 1 else len(labels)

    def _compare_all(
        self, vector: Float[np.ndarray, " dim"], nearest: Neighbours, labels: Int[np.ndarray, " label"], lambda_: float
    ) -> Neighbours:
        """The keys that a search found, and all keys that vote for the labels; a key in both groups counts once."""
        near = nearest.keys[0] >= 0
        keys, similarities = nearest.keys[0, near], nearest.similarities[0, near]
        others = np.setdiff1d(self._voting_keys(labels, lambda_), keys)
        compared = self._searcher.similarities(vector, others)
        return Neighbours(
            similarities=np.concatenate([similarities, compared])[None], keys=np.concatenate([keys, others])[None]
        )

    def _voting_keys(self, labels: Int[np.ndarray, " label"], lambda_: float) -> Int[np.ndarray, " key"]:
        """The keys that vote for at least one of the labels, in rising order."""
        instances = self._searcher.instances.keys
        votes = np.zeros(instances, dtype=bool)
        for block in self._blocks(labels, lambda_):
            votes[self._voters.gather(labels[block])[1]] = True
        return np.concatenate([np.flatnonzero(votes), labels + instances if lambda_ < 1 else labels[:0]])

    def _count_votes(self, labels: Int[np.ndarray, " label"], lambda_: float) -> int:
        """The number of votes for the labels, without votes that lambda gives the weight 0."""
        from_instances = int(self._voters.counts(labels).sum()) if lambda_ > 0 else 0
        return from_instances + (len(labels) if lambda_ < 1 else 0)

    def _blocks(self, labels: Int[np.ndarray, " label"], lambda_: float) -> Iterator[slice]:
        """Slices of the labels; the labels of one slice have about `_BLOCK_VOTES` votes of instances.

        At lambda 0 there are no slices.
        """
        if lambda_ == 0:
            return
        block = np.cumsum(self._voters.counts(labels)) // _BLOCK_VOTES
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        for start, stop in itertools.pairwise([*starts.tolist(), len(labels)]):
            yield slice(start, stop)
