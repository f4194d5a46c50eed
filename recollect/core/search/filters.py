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
import json
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.bundle.label_fields import Value
from recollect.core.bundle.manifest import MOST_KEYS
from recollect.core.errors import QueryError
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
# Number and memory of the kept filters of one snapshot, and memory of a filter besides its arrays and its values.
_MOST_KEPT, _KEPT_BYTES, _FILTER_BYTES = 256, 64 << 20, 1_024
# Numbers of values and of fields that a message names.
_NAMED, _NAMED_FIELDS = 5, 20


def describe_unknown(options: AnswerOptions, labels: Labels) -> Iterator[str]:
    """Yield a message for each filter with uids that are no labels."""
    for name, uids in (("allow", options.allow or ()), ("deny", options.deny)):
        if unknown := [uid for uid in uids if labels.position(uid) is None]:
            found = f"{len(unknown):,} of {len(uids):,} uids"
            yield f"--{name}: {found} are no labels of this version, such as {unknown[0]!r}"


class LabelFilter:
    """Admits some labels of a memory.

    Attributes:
        admits: Whether each label is admitted; removed labels are not.
        allows_all: Whether all labels are admitted except a list of denied ones.
        admits_all: Whether all present labels are admitted.
    """

    def __init__(
        self, admits: Bool[np.ndarray, " label"], voters: Voters, allows_all: bool = False, admits_all: bool = False
    ) -> None:
        self.admits, self.allows_all, self.admits_all, self._voters = admits, allows_all, admits_all, voters

    @functools.cached_property
    def labels(self) -> Int[np.ndarray, " label"]:
        """Positions of the admitted labels, in rising order."""
        return np.flatnonzero(self.admits)

    @functools.cached_property
    def voted(self) -> int:
        """The number of admitted labels that an instance votes for."""
        return int(np.count_nonzero(self._voters.counts(self.labels)))

    @functools.cached_property
    def instance_votes(self) -> int:
        """The number of votes of instances for the admitted labels, or more."""
        if not self.allows_all:
            return int(self._voters.counts(self.labels).sum())
        return self._voters.pairs - int(self._voters.counts(np.flatnonzero(~self.admits)).sum())


class Filters:
    """Makes the filters of a memory. Those of fields and of parents are kept, because many requests have equal ones."""

    def __init__(self, labels: Labels, voters: Voters) -> None:
        self._labels, self._voters = labels, voters
        self._kept, self._kept_bytes = dict[tuple[str | None, str | None], tuple[LabelFilter, int]](), 0
        self._lock = threading.Lock()

    def of(self, options: AnswerOptions) -> LabelFilter | None:
        """The filter of some options; None if they have none.

        Labels in `allow` and `deny` that the memory lacks are ignored, because a client's list can be older than the
        version that answers.

        Raises:
            QueryError: If no label has a value in `where`, or `under` is no label.
        """
        if not options.filtered:
            return None
        labels, allow, deny = self._labels, options.allow, options.deny
        by_fields = self._by_fields(options) if options.where or options.under else None
        if by_fields is not None and allow is None and not deny:
            return by_fields
        admits = labels.present() if by_fields is None else by_fields.admits.copy()
        if allow is not None:
            allowed = np.zeros_like(admits)
            allowed[labels.positions(allow)] = True
            admits &= allowed
        admits[labels.positions(deny)] = False
        allows_all = allow is None and by_fields is None
        return LabelFilter(admits, self._voters, allows_all, allows_all and not deny)

    def _by_fields(self, options: AnswerOptions) -> LabelFilter:
        key = options.where, options.under
        if (kept := self._kept.get(key)) is not None:
            return kept[0]
        admits = self._labels.present()
        for name, values in json.loads(options.where or "{}").items():
            admits &= self._marked([self._with_value(name, value) for value in values])
        if options.under is not None:
            if self._labels.position(options.under) is None:
                raise QueryError(f"under: expected the uid of a label of this version, found {options.under[:80]!r}")
            admits &= self._marked([self._labels.below(options.under)])
        made = LabelFilter(admits, self._voters)
        size = made.admits.nbytes + made.labels.nbytes + len(options.where or "") + _FILTER_BYTES
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made, size
                self._kept_bytes += size
            while len(self._kept) > 1 and (len(self._kept) > _MOST_KEPT or self._kept_bytes > _KEPT_BYTES):
                self._kept_bytes -= self._kept.pop(next(iter(self._kept)))[1]  # the oldest one
        return made

    def _marked(self, positions: Sequence[Int[np.ndarray, " _"]]) -> Bool[np.ndarray, " label"]:
        marks = np.zeros(len(self._labels), dtype=bool)
        marks[np.concatenate(positions)] = True
        return marks

    def _with_value(self, name: str, value: Value) -> Int[np.ndarray, " found"]:
        found = self._labels.with_value(name, value)
        if len(found):
            return found
        known = [repr(each) for each, _ in itertools.islice(self._labels.values_of(name), _NAMED + 1)]
        if known:
            more = ", ..." if len(known) > _NAMED else ""
            raise QueryError(
                f"where: {name}: expected values that a label has, such as {', '.join(known[:_NAMED])}{more}; "
                f"found {value!r:.80}"
            )
        fields = ", ".join(sorted(self._labels.valued_fields())[:_NAMED_FIELDS]) or "none"
        raise QueryError(f"where: expected fields of the labels of this version ({fields}), found {name[:80]!r}")


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
        rankable = (
            label_filter.voted if lambda_ == 1 else len(label_filter.labels)
        )  # at lambda 1, label keys have no vote
        enough, larger = min(options.top_k, rankable), found
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
        votes = label_filter.instance_votes if lambda_ > 0 else 0
        return votes + (len(label_filter.labels) if lambda_ < 1 else 0) <= MAX_CHEAP_VOTES

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
