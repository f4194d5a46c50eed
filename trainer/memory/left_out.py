"""Instances as queries, each left out of the memory: tuning and calibration measure the memory with them.

The memory stores the vectors of these queries, so no text is encoded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.core.neighbours import Neighbours
from recollect.trainer.enriched import mix
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.held_out import ALL, HeldOutTexts
from recollect.trainer.memory.distillation import read_distillation
from recollect.trainer.memory.memory import Memory, read_texts
from recollect.trainer.memory.search import nearest
from recollect.trainer.metrics import hits
from recollect.trainer.randomness import Purpose, generator

# The next step if too few instances are held out.
MORE_HELD_OUT = "train on more texts, or with a larger --validation-fraction"


def choose_queries(
    memory: Memory, run: Path, limit: int, seed: int, held_out: HeldOutTexts | None = None
) -> Int[np.ndarray, " query"]:
    """Rows of the query instances, in rising order: instances with labels from which the run has not learnt.

    Args:
        held_out: The part of the held-out instances to choose from; None: all of them.

    Raises:
        MemoryFolderError: If the memory's texts are damaged.
        TrainingError: If `distillation.json` is invalid.
    """
    texts, candidates = memory.folder / "instances.jsonl", np.diff(memory.value_indptr) > 0
    try:
        for allowed in {held_out_of(memory, run), held_out or ALL}:
            candidates &= allowed.mask(read_texts(texts), memory.plan.instances)
    except ValueError:
        raise MemoryFolderError(
            f"{texts}: expected {memory.plan.instances:,} lines, found fewer; run `recollect train` again"
        ) from None
    return np.sort(generator(seed, Purpose.TUNING).permutation(np.flatnonzero(candidates))[:limit])


def held_out_of(memory: Memory, run: Path) -> HeldOutTexts:
    """The texts from which the encoders of a run have not learnt.

    Raises:
        TrainingError: If `distillation.json` is invalid.
    """
    distillation = None if memory.distilled is None else read_distillation(run)
    return memory.held_out if distillation is None else HeldOutTexts.of_json(distillation["held_out"])


def instance_neighbours(memory: Memory, rows: Int[np.ndarray, " query"], top_b: int, device: str = "cpu") -> Neighbours:
    """The nearest instances of each query, without the query itself."""
    similarities, found = nearest(memory.queries(rows), memory.instance_keys, top_b + 1, device)
    itself = found == rows[:, None]
    # Nearer or equal keys may push the query itself out of the list. Then drop the last key instead.
    itself[~itself.any(axis=1), -1] = True
    shape = (len(rows), found.shape[1] - 1)
    return Neighbours(similarities[~itself].reshape(shape), found[~itself].reshape(shape))


def label_neighbours(
    memory: Memory, rows: Int[np.ndarray, " query"], alpha: float, top_b: int, device: str = "cpu"
) -> Neighbours:
    """The nearest labels of each query. The query is left out of the means of its labels."""
    keys = memory.label_keys(alpha)
    queries = memory.queries(rows)
    own = memory.relevance[rows]
    # A label may lose its rank when the query is left out of the label's mean: search for more labels.
    extra = int(np.diff(own.indptr).max()) if alpha else 0
    similarities, found = nearest(queries, keys.filled(), top_b + extra, device)
    if alpha:
        query = np.repeat(np.arange(len(rows)), np.diff(own.indptr))
        distinct, positions = np.unique(own.indices, return_inverse=True)  # many queries share a label
        sums = keys.sums(distinct)[positions] - np.asarray(memory.instance_keys[rows], dtype=np.float32)[query]
        sums[keys.counts[own.indices] == 1] = 0  # labels with no other instance: remove the rounding error
        texts = memory.label_keys(0.0)[own.indices]
        without_query = np.einsum("pd,pd->p", queries[query], mix(texts, sums, alpha))
        similarities[hits(found, own)] = -np.inf
        # Add all labels of the query, found or not found: a label may come closer when the query is left out of its
        # mean.
        nth, shape = np.arange(len(query)) - own.indptr[query], (len(rows), extra)
        own_similarities, own_labels = np.full(shape, -np.inf, np.float32), np.zeros(shape, found.dtype)
        own_similarities[query, nth], own_labels[query, nth] = without_query, own.indices
        similarities = np.concatenate([similarities, own_similarities], axis=1)
        found = np.concatenate([found, own_labels], axis=1)
        order = np.argsort(-similarities, axis=1, kind="stable")
        similarities, found = (np.take_along_axis(part, order, axis=1) for part in (similarities, found))
    top_b = min(top_b, len(keys))
    return Neighbours(similarities[:, :top_b], found[:, :top_b])
