"""Synthetic memories of any size: keys in nested clusters, and labels with Zipf frequencies.

Keys are the leaves of a tree. A random step leads from the origin to the root, one from each branch to the next, and
one from the last branch to the key, which is then normalised. So keys have neighbours at every distance scale, like the
titles of a library catalogue. The step lengths are fitted to such titles. The steps have the falling spectrum of a
sentence encoder, in a random rotation. A topic is a group of neighbouring clusters. The labels of a topic have ranks,
and an instance draws a label with a probability in inverse proportion to the rank. In half of the draws, the ranks
start at the instance's own cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from recollect.core.system.files import save_array, write_lines
from recollect.trainer.data.split import no_pairs
from recollect.trainer.memory.memory import DEFAULTS, MemoryPlan, write_defaults

# Approximate keys in a cluster (the lowest branch), clusters in a topic, and branches at each level.
_CLUSTER_KEYS, _TOPIC_CLUSTERS, _BRANCHES = 40, 50, 10
# Lengths of the steps to the root, to each branch, and to a key.
_ROOT_STEP, _BRANCH_STEP, _KEY_STEP = 0.26, 0.3, 0.65
# The n-th direction of the spectrum varies as n to this power.
_SPECTRUM = -0.45
# Clusters have different sizes: the first fraction s of the clusters holds a fraction of the instances of s to this
# power.
_SKEW = 0.75
# Number of draws for each wanted label of an instance. Above 1, because some draws repeat a label.
_DRAWS = 1.2
# Number of rows in a block. Each block has its own random generator.
_BLOCK_ROWS = 65_536


class SyntheticMemory:
    """A synthetic memory. Equal arguments give equal memories.

    Args:
        instances: Number of instances.
        labels: Number of labels.
        dim: Dimension of a key.
        labels_per_instance: Approximate mean number of labels of an instance.
        seed: Random seed.
    """

    def __init__(self, instances: int, labels: int, dim: int, labels_per_instance: float, seed: int = 1) -> None:
        self.instances, self.labels, self.dim = instances, labels, dim
        self._labels_per_instance, self._seed = labels_per_instance, seed
        random = self._random("centres", 0)
        spectrum = np.arange(1, dim + 1) ** _SPECTRUM
        rotation = np.linalg.qr(random.standard_normal((dim, dim)))[0]
        self._directions = (spectrum[:, None] / np.linalg.norm(spectrum) * rotation).astype(np.float32)
        self._centres = self._cluster_centres(random, (instances + labels) / _CLUSTER_KEYS)

    @property
    def keys(self) -> int:
        return self.instances + self.labels

    def write(self, folder: Path, progress: Callable[[int], object]) -> None:
        """Write a memory folder with float16 keys. `progress` is called with the size of each block."""
        folder.mkdir(parents=True)
        plan = MemoryPlan(self.instances, self.labels, self.dim, "float16", {}, "", "")
        keys = np.lib.format.open_memmap(folder / "keys.npy", "w+", plan.key_dtype, (plan.keys, plan.dim))
        counts, values = [], []
        for start in range(0, plan.instances, _BLOCK_ROWS):
            random = self._random("instances", start)
            clusters = self._draw_clusters(random, min(_BLOCK_ROWS, plan.instances - start))
            keys[start : start + len(clusters)] = self._keys(random, clusters)
            count, labels = self._label_sets(random, clusters)
            counts.append(count)
            values.append(labels)
            progress(len(clusters))
        for start in range(0, plan.labels, _BLOCK_ROWS):
            labels = np.arange(start, min(start + _BLOCK_ROWS, plan.labels))
            first = plan.instances + start
            keys[first : first + len(labels)] = self._keys(self._random("labels", start), self._label_clusters(labels))
            progress(len(labels))
        save_array(folder / "value_indptr.npy", np.cumsum(np.concatenate([[0], *counts]), dtype=np.int64))
        save_array(folder / "value_indices.npy", np.concatenate(values).astype(np.int32))
        save_array(folder / "filtered_pairs.npy", no_pairs())
        for part, rows in (("instance", plan.instances), ("label", plan.labels)):
            text = f"The text of {part} {{}}, as long as a title"
            write_lines(
                folder / f"{part}s.jsonl", ({"uid": f"{part}-{row}", "text": text.format(row)} for row in range(rows))
            )
        write_defaults(folder, plan, DEFAULTS)

    def queries(self, rows: int) -> Float[np.ndarray, "row dim"]:
        """Draw queries from the distribution of the instances. The memory does not contain these queries."""
        random = self._random("queries", 0)
        return self._keys(random, self._draw_clusters(random, rows))

    def _random(self, part: str, start: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, start, *part.encode()])

    def _cluster_centres(self, random: np.random.Generator, clusters: float) -> Float[np.ndarray, "cluster dim"]:
        """Draw the centres of approximately this many clusters, by splitting clusters again and again."""
        depth = max(1, round(math.log(max(clusters, 2), _BRANCHES)))
        branches = max(2, round(clusters ** (1 / depth)))
        centres = self._steps(random, 1, _ROOT_STEP)
        for _ in range(depth):
            centres = np.repeat(centres, branches, axis=0)
            for start in range(0, len(centres), _BLOCK_ROWS):
                block = centres[start : start + _BLOCK_ROWS]
                block += self._steps(random, len(block), _BRANCH_STEP)
        return centres

    def _steps(self, random: np.random.Generator, rows: int, length: float) -> Float[np.ndarray, "row dim"]:
        draws = random.standard_normal((rows, self.dim), dtype=np.float32)
        steps: np.ndarray = draws @ (np.float32(length) * self._directions)
        return steps

    def _keys(self, random: np.random.Generator, clusters: Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        keys = self._centres[clusters] + self._steps(random, len(clusters), _KEY_STEP)
        unit: np.ndarray = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        return unit

    def _draw_clusters(self, random: np.random.Generator, rows: int) -> Int[np.ndarray, " row"]:
        return (len(self._centres) * random.random(rows) ** (1 / _SKEW)).astype(np.int64)

    def _label_clusters(self, labels: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """The cluster of each label. Neighbouring labels have the same cluster or neighbouring clusters."""
        return labels * len(self._centres) // self.labels

    def _label_sets(
        self, random: np.random.Generator, clusters: Int[np.ndarray, " row"]
    ) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " pair"]]:
        """The number of labels of each row, at least one, and the labels in ascending order."""
        draws = 1 + random.poisson(max(0.0, _DRAWS * self._labels_per_instance - 1), len(clusters))
        rows = np.repeat(np.arange(len(clusters)), draws)
        topics = max(1, len(self._centres) // _TOPIC_CLUSTERS)
        topic = clusters[rows] * topics // len(self._centres)
        first = topic * self.labels // topics
        size = np.maximum(1, (topic + 1) * self.labels // topics - first)
        rank = (size ** random.random(len(rows))).astype(np.int64) - 1
        own = self.labels * clusters[rows] // len(self._centres) - first
        place = np.where(random.random(len(rows)) < 0.5, rank, (rank + own) % size)
        labels = np.minimum(first + place, self.labels - 1)
        pairs = np.unique(rows * np.int64(self.labels) + labels)
        return np.bincount(pairs // self.labels, minlength=len(clusters)), pairs % self.labels
