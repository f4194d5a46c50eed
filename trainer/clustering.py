"""Balanced clusters of unit vectors.

Balanced binary k-means as in NGAME (Dahiya et al., WSDM 2023) and PRIME, for any number of clusters: each node (a set
of vectors) is split in two by 2-means with fixed sizes of both halves, until every node is one cluster.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.trainer.sharded import Sharded

# Number of vectors in memory at once. A larger node is split along a direction computed from a sample of this size. The
# means of 2,000 vectors in each half are almost exact: a sample sixteen times as large gives clusters that are just as
# tight.
_CHUNK_ROWS = 4_096
# A split ends when at most a hundredth of the vectors move to the other half.
_ROUNDS, _CHANGED = 10, 0.01


def balanced_clusters(
    vectors: Sharded, rows: Int[np.ndarray, " row"], clusters: int, random: np.random.Generator
) -> Int[np.ndarray, " row"]:
    """Return the cluster number (from 0) of each row in `rows`. Cluster sizes differ by at most one.

    Clusters with neighbouring numbers come from the same larger cluster. The ranks share the work, and every rank gets
    the result. In addition to its share of the vectors, a rank needs memory for a few integers a row and for one chunk
    of vectors.

    Args:
        vectors: Unit vectors or zero vectors. The shares may be mapped from a file.
        rows: The vectors to cluster. Reading a mapped file is fastest if they are in ascending order.
        clusters: Number of clusters, from 1 to the number of rows.
        random: Draws the vectors from which each split starts.

    Raises:
        ValueError: If `clusters` is out of range.
    """
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"clusters: expected 1 to {len(rows)}, one for each vector at most, found {clusters}")
    bounds = len(rows) * np.arange(clusters + 1) // clusters
    order = np.arange(len(rows))  # the splits sort it by cluster
    nodes, small = [(0, clusters)], []
    while nodes:
        first, last = nodes.pop()
        node = slice(bounds[first], bounds[last])
        places = order[node]
        if last - first == 1:
            continue
        if len(places) <= _CHUNK_ROWS:
            small.append((first, last))
        else:
            middle = (first + last) // 2
            left = _split_by_sample(vectors, rows[places], int(bounds[middle] - node.start), random)
            order[node] = np.concatenate([places[left], places[~left]])
            nodes += [(middle, last), (first, middle)]
    order = _split_small(vectors, rows, order, [bounds[first : last + 1] for first, last in small], random)
    numbers = np.empty_like(order)
    numbers[order] = np.repeat(np.arange(clusters), np.diff(bounds))
    return numbers


def _split_small(
    vectors: Sharded,
    rows: Int[np.ndarray, " row"],
    order: Int[np.ndarray, " row"],
    nodes: list[np.ndarray],
    random: np.random.Generator,
) -> Int[np.ndarray, " row"]:
    """Split nodes of at most one chunk of vectors, each on one rank. Return the new order of all rows.

    Args:
        order: Places in `rows`, sorted by node.
        nodes: The bounds of the clusters in each node, as places in `order`.
        random: Each node has a generator of its own, so that the clusters do not depend on the number of ranks.
    """
    ranks = vectors.ranks
    ordered, own = order.copy(), np.full(len(order), ranks.first)
    for number, (bounds, stream) in enumerate(zip(nodes, random.spawn(len(nodes)), strict=True)):
        rank, node = number % ranks.size, slice(bounds[0], bounds[-1])
        read = vectors.gather(rows[order[node]], to=rank)
        own[node] = ranks.rank == rank
        if ranks.rank == rank:
            ordered[node] = order[node][_split_to_leaves(_in_float32(read), bounds - node.start, stream)]
    return ranks.all_reduce_array(np.where(own, ordered, 0), vectors.device)


def _split_by_sample(
    vectors: Sharded, rows: Int[np.ndarray, " row"], left: int, random: np.random.Generator
) -> Bool[np.ndarray, " row"]:
    """Mark the rows of the left half.

    A sample gives the direction of the split, and all rows are sorted along this direction. Each rank computes the
    scores of the rows that it holds.
    """
    drawn = np.sort(random.choice(len(rows), _CHUNK_ROWS, replace=False))
    sample = _in_float32(vectors.gather(rows[drawn]))
    sides = torch.from_numpy(_split(sample[None], round(len(sample) * left / len(rows)), random)[0]).to(sample.dtype)
    means = torch.nn.functional.normalize(torch.stack([sides, 1 - sides]) @ sample)
    direction = (means[0] - means[1]).to(vectors.device)
    vectors.ranks.broadcast([direction])  # rounding must not give ranks different clusters
    direction = direction.cpu()
    scores, (places, own) = np.zeros(len(rows), np.float32), vectors.find_own(rows)
    for start in range(0, len(own), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        scores[places[chunk]] = _in_float32(vectors.own[own[chunk]]) @ direction
    highest: np.ndarray = _highest(vectors.ranks.all_reduce_array(scores, vectors.device)[None], left)[0]
    return highest


def _split_to_leaves(
    vectors: Float[Tensor, "row dim"], bounds: Int[np.ndarray, " bound"], random: np.random.Generator
) -> Int[np.ndarray, " row"]:
    """Return an order of the vectors in which each cluster lies between its bounds.

    Nodes of equal shape are split together.
    """
    order = np.arange(len(vectors))
    first, last = np.array([0]), np.array([len(bounds) - 1])
    while True:
        first, last = (ends[last - first > 1] for ends in (first, last))
        if not len(first):
            return order
        middle = (first + last) // 2
        start, cut, stop = bounds[first], bounds[middle], bounds[last]
        shapes, shape = np.unique([stop - start, cut - start], axis=1, return_inverse=True)
        for number, (size, left) in enumerate(shapes.T):
            spans = start[shape == number, None] + np.arange(size)
            places = order[spans]
            in_left = _split(vectors[torch.from_numpy(places)], int(left), random)
            order[spans] = np.take_along_axis(places, np.argsort(~in_left, axis=1, kind="stable"), axis=1)
        first, last = np.concatenate([first, middle]), np.concatenate([middle, last])


def _split(
    nodes: Float[Tensor, "node row dim"], left: int, random: np.random.Generator
) -> Bool[np.ndarray, "node row"]:
    """Mark the `left` rows of each node's left half, which spherical 2-means with fixed sizes finds.

    A mean is the sum of its rows divided by the length of the sum, so a round needs only inner products with sums.
    """
    count, size, _ = nodes.shape

    def products(weights: Float[Tensor, "node row"]) -> Float[Tensor, "node row"]:
        """Return each row's inner product with the weighted sum of its node's rows."""
        return (nodes @ (nodes.mT @ weights[:, :, None]))[:, :, 0]

    with_all = products(torch.ones(count, size))
    # Two different rows are the first means.
    one = random.integers(size, size=count)
    other = (one + random.integers(1, size, size=count)) % size
    difference = torch.zeros(count, size)
    difference[torch.arange(count), torch.from_numpy(one)] = 1
    difference[torch.arange(count), torch.from_numpy(other)] = -1
    in_left = _highest(products(difference).numpy(), left)
    for _ in range(_ROUNDS):
        with_left = products(torch.from_numpy(in_left).to(nodes.dtype))
        with_right = with_all - with_left
        scores = with_left / _length_of_sum(with_left, in_left) - with_right / _length_of_sum(with_right, ~in_left)
        before, in_left = in_left, _highest(scores.numpy(), left)
        if np.count_nonzero(in_left != before) <= _CHANGED * in_left.size:
            break
    return in_left


def _length_of_sum(products: Float[Tensor, "node row"], side: Bool[np.ndarray, "node row"]) -> Float[Tensor, "node 1"]:
    """Return the length of the sum of one half's rows, given the inner products of all rows with this sum."""
    squares = (products * torch.from_numpy(side)).sum(dim=1, keepdim=True)
    return squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()  # rounding may make it 0 or negative


def _highest(scores: Float[np.ndarray, "node row"], count: int) -> Bool[np.ndarray, "node row"]:
    """Mark exactly `count` of the highest scores of each node, also if several scores are equal."""
    highest = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(highest, np.argpartition(-scores, count - 1, axis=1)[:, :count], True, axis=1)
    return highest


def _in_float32(vectors: Float[np.ndarray, "row dim"]) -> Float[Tensor, "row dim"]:
    return torch.from_numpy(vectors.astype(np.float32, copy=False))
