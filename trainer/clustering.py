"""Balanced clusters of unit vectors: halves of halves, each by a 2-means that gives both sides their share.

Balanced binary k-means as in NGAME (Dahiya et al., WSDM 2023) and PRIME, for any number of clusters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Vectors that are held at once. What is larger is split along a direction that so many of its vectors decide: the
# means of 2,000 vectors a side are all but exact, and clusters are as tight as with sixteen times as many.
_STRETCH_ROWS = 4_096
# Nodes are split together up to so many vectors, which stay in a core's own cache through all rounds.
_PIECE_ROWS = 512
# Up to this size a node's inner products are cheaper to keep than to make anew from vectors in each round.
_GRAM_ROWS = 128
# A split is done when no more than a hundredth of the vectors changed sides.
_ROUNDS, _CHANGED = 10, 0.01


def balanced_clusters(
    vectors: Float[np.ndarray, "vector dim"], rows: Int[np.ndarray, " row"], clusters: int, random: np.random.Generator
) -> Int[np.ndarray, " row"]:
    """The cluster of each of `rows`, from 0; sizes differ by one at most, and near numbers are of one larger cluster.

    Beyond some integers a row, no more than a stretch of vectors is in memory at once.

    Args:
        vectors: Unit vectors, or zeros; may be mapped from a file.
        rows: The vectors to cluster; a mapped file is read fastest where they rise.
        clusters: From 1 to as many as there are rows.
        random: Draws the vectors that each split starts from.

    Raises:
        ValueError: If there are too many clusters, or none.
    """
    if not 1 <= clusters <= len(rows):
        raise ValueError(f"clusters: expected 1 to {len(rows)}, one for each vector at most, found {clusters}")
    bounds = len(rows) * np.arange(clusters + 1) // clusters
    order = np.arange(len(rows))  # at the end, cluster after cluster
    nodes = [(0, clusters)]
    while nodes:
        first, last = nodes.pop()
        node = slice(bounds[first], bounds[last])
        places = order[node]
        if len(places) <= _STRETCH_ROWS:
            order[node] = places[
                _split_all(_read(vectors, rows[places]), bounds[first : last + 1] - node.start, random)
            ]
        elif last - first > 1:
            middle = (first + last) // 2
            near = _split_large(vectors, rows[places], int(bounds[middle] - node.start), random)
            order[node] = np.concatenate([places[near], places[~near]])
            nodes += [(middle, last), (first, middle)]
    numbers = np.empty_like(order)
    numbers[order] = np.repeat(np.arange(clusters), np.diff(bounds))
    return numbers


def _split_large(
    vectors: Float[np.ndarray, "vector dim"], rows: Int[np.ndarray, " row"], left: int, random: np.random.Generator
) -> Bool[np.ndarray, " row"]:
    """Which rows are of the left half: a sample finds the direction, then all are put in its order."""
    drawn = np.sort(random.choice(len(rows), _STRETCH_ROWS, replace=False))
    sample = _read(vectors, rows[drawn])
    near = torch.from_numpy(_split(sample[None], round(len(sample) * left / len(rows)), random)[0]).to(sample.dtype)
    means = torch.nn.functional.normalize(torch.stack([near, 1 - near]) @ sample)
    scores = [
        (_read(vectors, rows[start : start + _STRETCH_ROWS]) @ (means[0] - means[1])).numpy()
        for start in range(0, len(rows), _STRETCH_ROWS)
    ]
    highest: np.ndarray = _highest(np.concatenate(scores)[None], left)[0]
    return highest


def _split_all(
    vectors: Float[Tensor, "row dim"], bounds: Int[np.ndarray, " bound"], random: np.random.Generator
) -> Int[np.ndarray, " row"]:
    """An order of the vectors in which each cluster lies between its bounds; nodes of one shape are split together."""
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
            starts, together = start[shape == number], max(1, _PIECE_ROWS // size)
            for piece in range(0, len(starts), together):
                spans = starts[piece : piece + together, None] + np.arange(size)
                places = order[spans]
                near = _split(vectors[torch.from_numpy(places)], int(left), random)
                order[spans] = np.take_along_axis(places, np.argsort(~near, axis=1, kind="stable"), axis=1)
        first, last = np.concatenate([first, middle]), np.concatenate([middle, last])


def _split(
    nodes: Float[Tensor, "node row dim"], left: int, random: np.random.Generator
) -> Bool[np.ndarray, "node row"]:
    """Which rows of each node are of its left half, by spherical 2-means with `left` rows on that side.

    A mean is a sum of rows over its length, so that inner products with sums are all that a round needs.
    """
    count, size, _ = nodes.shape
    products = _products(nodes)
    everything = products(torch.ones(count, size))
    # Two different rows are the first means.
    one = random.integers(size, size=count)
    other = (one + random.integers(1, size, size=count)) % size
    difference = torch.zeros(count, size)
    difference[torch.arange(count), torch.from_numpy(one)] = 1
    difference[torch.arange(count), torch.from_numpy(other)] = -1
    near = _highest(products(difference).numpy(), left)
    for _ in range(_ROUNDS):
        to_near = products(torch.from_numpy(near).to(nodes.dtype))
        to_far = everything - to_near
        scores = to_near / _length(to_near, near) - to_far / _length(to_far, ~near)
        before, near = near, _highest(scores.numpy(), left)
        if np.count_nonzero(near != before) <= _CHANGED * near.size:
            break
    return near


def _products(
    nodes: Float[Tensor, "node row dim"],
) -> Callable[[Float[Tensor, "node row"]], Float[Tensor, "node row"]]:
    """Each row's inner product with a weighted sum of its node's rows, as a function of the weights."""
    if nodes.shape[1] > _GRAM_ROWS:
        return lambda weights: (nodes @ (nodes.mT @ weights[:, :, None]))[:, :, 0]
    gram = nodes @ nodes.mT
    return lambda weights: (gram @ weights[:, :, None])[:, :, 0]


def _length(products: Float[Tensor, "node row"], side: Bool[np.ndarray, "node row"]) -> Float[Tensor, "node 1"]:
    """The length of the sum of a side's rows, from all rows' products with it."""
    squares = (products * torch.from_numpy(side)).sum(dim=1, keepdim=True)
    return squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()  # a sum may be zero, or less by rounding


def _highest(scores: Float[np.ndarray, "node row"], count: int) -> Bool[np.ndarray, "node row"]:
    """The highest scores of each node, as many as asked for whatever the ties."""
    highest = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(highest, np.argpartition(-scores, count - 1, axis=1)[:, :count], True, axis=1)
    return highest


def _read(vectors: Float[np.ndarray, "vector dim"], rows: Int[np.ndarray, " row"]) -> Float[Tensor, "row dim"]:
    return torch.from_numpy(vectors[rows].astype(np.float32, copy=False))
