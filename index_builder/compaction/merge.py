"""`merge`: near-duplicates with equal label sets become one key.

The instances of a label set are read in order. An instance joins the first leader whose similarity to it reaches the
threshold; if there is none, it becomes a leader. A leader keeps its key and its text, and votes with the number of
instances that it stands for. So the answers do not change if only equal vectors are merged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.memory import Memory

# Rounding error of an inner product of unit vectors in single precision: equal vectors must reach a threshold of 1.
_ROUNDING = 1e-6
# Number of instances that are compared at a time with this number of leaders. They limit the memory.
_BLOCK_INSTANCES, _BLOCK_LEADERS = 1_024, 16_384


def find_leaders(memory: Memory, similarity: float) -> Int[np.ndarray, " instance"]:
    """The leader of each instance; a leader leads itself.

    Args:
        memory: The memory.
        similarity: Least similarity of an instance to its leader.
    """
    leaders = np.arange(memory.plan.instances)
    for rows in _groups(memory.label_sets):
        leaders[rows] = rows[_lead(memory.instance_keys, rows, similarity - _ROUNDING)]
    return leaders


def _groups(label_sets: LabelSets) -> Iterator[Int[np.ndarray, " row"]]:
    """The rows of each group of at least two instances with equal label sets, in rising order."""
    group_of: dict[bytes, int] = {}
    indices, indptr = np.asarray(label_sets.indices), label_sets.indptr.tolist()
    groups = np.empty(len(label_sets), dtype=np.int64)
    for row in range(len(label_sets)):
        groups[row] = group_of.setdefault(indices[indptr[row] : indptr[row + 1]].tobytes(), len(group_of))
    sizes = np.bincount(groups)
    repeated = np.flatnonzero(sizes[groups] > 1)
    repeated = repeated[np.argsort(groups[repeated], kind="stable")]
    if len(repeated):
        yield from np.split(repeated, np.cumsum(sizes[sizes > 1])[:-1])


def _lead(
    keys: Float[np.ndarray, "instance dim"], rows: Int[np.ndarray, " row"], least: float
) -> Int[np.ndarray, " row"]:
    """The place in `rows` of the leader of each row."""
    leader = np.full(len(rows), -1)
    leaders: list[int] = []
    for start in range(0, len(rows), _BLOCK_INSTANCES):
        block = _vectors(keys, rows[start : start + _BLOCK_INSTANCES])
        own = leader[start : start + len(block)]
        for first in range(0, len(leaders), _BLOCK_LEADERS):
            places = np.array(leaders[first : first + _BLOCK_LEADERS])
            similar = block @ _vectors(keys, rows[places]).T >= least
            joins = (own < 0) & similar.any(axis=1)
            own[joins] = places[similar[joins].argmax(axis=1)]
        similar = block @ block.T >= least
        for place in range(len(block)):
            if own[place] < 0:
                own[similar[place] & (own < 0)] = start + place
                own[place] = start + place
                leaders.append(start + place)
    return leader


def _vectors(keys: Float[np.ndarray, "instance dim"], rows: Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
    return np.asarray(keys[rows], dtype=np.float32)
