"""The memory that a bundle serves. Without compaction, it is the memory of the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.compaction.rotation import rotate
from recollect.service.bundle.manifest import Compaction
from recollect.service.bundle.values import SparseValues
from recollect.trainer.memory.memory import Memory


@dataclass(frozen=True)
class ServedMemory:
    """The keys, values and texts of a bundle, and the instances of the run.

    Attributes:
        memory: The memory that the bundle serves.
        full: All instances of the run, with vectors of the same dimensions. Measurements take their queries from it.
        own: The row in `memory` of the key that stands for each instance of `full`; -1 if `memory` was made without it.
        counts: Number of instances that each key of `memory` stands for; None means one each.
        rotation: The projection of the run's vectors to the served dimensions; None means no projection.
        compaction: Manifest entry of the compaction; None without compaction.
        merged_away: Number of instances of each label that an earlier compaction has merged or pruned, and that `full`
            lacks; None means none.
        trial: The same compaction of a memory without the queries of all measurements; None if no instance was merged
            or pruned. An instance that takes over votes must not be a query, because its key has the query's labels.
    """

    memory: Memory
    full: Memory
    own: Int[np.ndarray, " instance"]
    counts: Float[np.ndarray, " kept"] | None = None
    rotation: Float[np.ndarray, "dim served_dim"] | None = None
    compaction: Compaction | None = None
    merged_away: Int[np.ndarray, " label"] | None = None
    trial: ServedMemory | None = None

    @classmethod
    def whole(cls, memory: Memory) -> ServedMemory:
        """Serve the memory of a run as it is."""
        return cls(memory, memory, np.arange(memory.plan.instances))

    @property
    def measured(self) -> ServedMemory:
        """The memory that answers the queries of measurements."""
        return self if self.trial is None else self.trial

    @property
    def values(self) -> SparseValues:
        memory, counts = self.memory, self.counts
        log_counts = None if counts is None else np.log(counts, dtype=np.float64)
        return SparseValues(memory.value_indptr, memory.value_indices, memory.plan.labels, log_counts)

    @property
    def label_counts(self) -> Int[np.ndarray, " label"]:
        """Number of instances of each label in the run."""
        counts = np.bincount(self.full.value_indices, minlength=self.full.plan.labels)
        return counts if self.merged_away is None else counts + self.merged_away

    @property
    def key_bytes(self) -> int:
        """Size of all keys in single precision."""
        return 4 * self.memory.plan.keys * self.memory.plan.dim

    def project(self, vectors: Float[np.ndarray, "text dim"]) -> Float[np.ndarray, "text served_dim"]:
        """Project vectors of the run's encoder to the served dimensions."""
        return vectors if self.rotation is None else rotate(vectors, self.rotation)
