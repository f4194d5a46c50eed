"""The memory of one rank as arithmetic: the parts that grow with the dataset, the batch, and the number of ranks.

The rest (program, encoder, graphs of a micro-batch) is measured by a trial on a sample:

    peak = (peak of the trial - parts at the sizes of the trial) + parts at the sizes of the training
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a rank does when it needs a part: some parts are there during the whole training.
Phase = Literal["always", "step", "keys"]

_FLOAT, _HALF, _INT, _LONG = 4, 2, 4, 8
# Number of keys that an exact search among some keys copies at once.
_COPIED_KEYS = 65_536


@dataclass(frozen=True)
class Sizes:
    """The numbers that determine the memory of a rank.

    Attributes:
        ranks: Number of processes.
        instances: Number of instances.
        labels: Number of labels.
        pairs: Number of pairs of an instance and its label.
        tokens: Number of tokens of all texts. 0: the inputs are vectors of a frozen encoder.
        text_bytes: Size of texts and uids.
        dim: Size of a vector below the head.
        key_dim: Size of a key.
        views: Size of all views of a text together.
        batch: Queries of a step, over all ranks.
        pool: Labels in the pool of a step, over all ranks.
        mined: Number of mined labels kept for each instance; 0: none.
        clustered: Whether batches are clusters of queries.
        summed: Whether the inputs of an adapter for labels contain sums of instance vectors.
        enriched: Whether validation mixes label keys with instances.
        followed: Whether the head stores a vector for each instance.
        head_bytes: Weights of the head with gradients and moments, and its buffers.
        trained_bytes: Weights that training changes, without gradients and moments.
        exchanged_bytes: Gradients that the ranks exchange in a step.
    """

    ranks: int
    instances: int
    labels: int
    pairs: int
    tokens: int
    text_bytes: int
    dim: int
    key_dim: int
    views: int
    batch: int
    pool: int
    mined: int
    clustered: bool
    summed: bool
    enriched: bool
    followed: bool
    head_bytes: int
    trained_bytes: int
    exchanged_bytes: int


@dataclass(frozen=True)
class Part:
    """A part of the memory of one rank.

    Attributes:
        name: A noun for the table.
        size_bytes: Its size.
        phase: When it is in memory.
        on_gpu: Whether a training on a GPU has it in the memory of the GPU.
        mapped: Whether all ranks of a host share it, because it is mapped from a file.
    """

    name: str
    size_bytes: int
    phase: Phase = "always"
    on_gpu: bool = False
    mapped: bool = False


def parts(sizes: Sizes) -> list[Part]:
    """The parts of the memory of one rank that depend on the sizes."""
    rows, own_instances = sizes.instances + sizes.labels, -(-sizes.instances // sizes.ranks)
    own_labels, own_pool = (-(-count // sizes.ranks) for count in (sizes.labels, sizes.pool))
    own_batch, matrix = -(-sizes.batch // sizes.ranks), (_INT + _FLOAT) * sizes.pairs + _INT * sizes.instances
    found = [
        Part("texts and uids", sizes.text_bytes),
        Part("label sets and the relevance matrix", _INT * sizes.pairs + _LONG * sizes.instances + matrix),
        Part("head: weights, gradients, moments", sizes.head_bytes, on_gpu=True),
        Part("gradients in one exchange", sizes.exchanged_bytes if sizes.ranks > 1 else 0, "step", on_gpu=True),
        Part("mined negatives", _INT * sizes.mined * own_instances),
        Part("clusters", _INT * sizes.instances if sizes.clustered else 0),
        Part("instance vectors of the head", _HALF * own_instances * sizes.dim if sizes.followed else 0),
        Part("views and gradients of a step", 2 * _FLOAT * (own_batch + own_pool) * sizes.views, "step", on_gpu=True),
        Part("views of all queries of a step", 3 * _FLOAT * sizes.batch * sizes.views, "step", on_gpu=True),
        Part("keys: own instances, all labels", _FLOAT * (own_instances + sizes.labels) * sizes.key_dim, "keys"),
        Part("relevance matrix of a validation", matrix, "keys"),
        Part("enriched keys of own labels", _FLOAT * own_labels * sizes.key_dim if sizes.enriched else 0, "keys"),
        Part("copied keys of a search", _FLOAT * min(_COPIED_KEYS, own_instances) * sizes.key_dim, "keys"),
        Part("found negatives", (_FLOAT + _LONG + _INT) * sizes.mined * own_instances, "keys"),
    ]
    if sizes.tokens:
        found.append(Part("token tables", _INT * sizes.tokens + _LONG * rows, mapped=sizes.ranks > 1))
    else:
        found.append(Part("vectors of all instances", _FLOAT * sizes.instances * sizes.dim))
        found.append(Part("sums of label inputs", _FLOAT * sizes.labels * sizes.dim if sizes.summed else 0))
        found.append(Part("vectors of the frozen encoder", _FLOAT * rows * sizes.dim, mapped=True))
    return [part for part in found if part.size_bytes]


def peak_bytes(found: list[Part]) -> int:
    """The largest sum of parts that are in memory together."""
    return max(sum(part.size_bytes for part in found if part.phase in ("always", phase)) for phase in ("step", "keys"))
