"""`recollect build --compact`: make the served memory from the memory of a run, and measure each step.

The methods run in a fixed order: rotate, merge, prune. So similarities are compared in the vectors that are served. The
keys of labels are computed from all instances, as without compaction.

Word index, word weight, probabilities and golden queries are made from the served memory. Lambda, tau and b stay those
of the run. A ranker is refused, because it was fitted to the votes of all keys.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from index_builder.compaction.measure import measure_step, print_steps
from index_builder.compaction.merge import find_leaders
from index_builder.compaction.methods import Methods
from index_builder.compaction.prune import Pruning
from index_builder.compaction.rotation import fit_rotation, rotate_memory
from index_builder.compaction.served_memory import ServedMemory
from service.bundle.manifest import Compaction
from trainer.data.split import LabelSets
from trainer.memory import Memory

_BLOCK_KEYS = 16_384


def compact(memory: Memory, run: Path, methods: Methods, folder: Path) -> ServedMemory:
    """Make the memory that the bundle serves.

    Args:
        memory: The memory of the run.
        run: The run folder, which records the held-out instances.
        methods: The methods; without any, the memory is served as it is.
        folder: An empty folder for the new arrays, which must exist as long as the result is used.

    Raises:
        BuildError: If the rotation is impossible, or the memory is damaged.
    """
    served = ServedMemory.whole(memory)
    if not methods.names:
        return served
    steps = [measure_step("none", served, run)]
    for name in methods.names:
        match name.partition(":")[0]:
            case "pca":
                served = _rotated(memory, methods.dim or memory.plan.dim, folder)
            case "merge":
                served = _merged(served, methods.similarity or 1.0, folder / "merged")
            case "prune":
                served = _pruned(served, methods.floor or 1, folder / "pruned")
        steps.append(measure_step(name, served, run))
    print_steps(steps)
    return dataclasses.replace(served, compaction=Compaction(instances=memory.plan.instances, steps=steps))


def _rotated(memory: Memory, dim: int, folder: Path) -> ServedMemory:
    rotation = fit_rotation(memory, dim)
    return dataclasses.replace(ServedMemory.whole(rotate_memory(memory, rotation, folder)), rotation=rotation)


def _merged(served: ServedMemory, similarity: float, folder: Path) -> ServedMemory:
    leaders = find_leaders(served.memory, similarity)
    counts = np.bincount(leaders, minlength=len(leaders)).astype(np.float32)
    led = dataclasses.replace(served, own=leaders[served.own], counts=counts)
    return _select(led, leaders == np.arange(len(leaders)), folder)


def _pruned(served: ServedMemory, floor: int, folder: Path) -> ServedMemory:
    pruning = Pruning(served, floor)
    pruning.run()
    handed_over = dataclasses.replace(served, own=pruning.heirs[served.own], counts=pruning.counts.astype(np.float32))
    return _select(handed_over, pruning.kept, folder)


def _select(served: ServedMemory, kept: Bool[np.ndarray, " instance"], folder: Path) -> ServedMemory:
    """Keep only some instances of the served memory, and write their keys and texts to a folder."""
    folder.mkdir()
    memory, places = served.memory, np.cumsum(kept) - 1
    rows, filtered = np.flatnonzero(kept), memory.filtered_pairs[kept[memory.filtered_pairs[:, 0]]]
    label_sets = LabelSets.of(memory.label_sets.to_csr(memory.plan.labels)[rows])
    _keep_lines(memory.folder / "instances.jsonl", kept, folder / "instances.jsonl")
    shutil.copyfile(memory.folder / "labels.jsonl", folder / "labels.jsonl")
    selected = Memory(
        folder,
        dataclasses.replace(memory.plan, instances=len(rows), key_dtype="float32"),
        memory.defaults | {"label_key_alpha": 0.0},  # the keys of labels are already mixed
        _write_keys(memory, rows, folder / "keys.npy"),
        label_sets.indptr,
        label_sets.indices,
        np.stack([places[filtered[:, 0]], filtered[:, 1]], axis=1),
        None if memory.distilled is None else memory.distilled[rows],
    )
    counts = None if served.counts is None else served.counts[rows]
    return dataclasses.replace(served, memory=selected, own=places[served.own], counts=counts)


def _write_keys(memory: Memory, rows: Int[np.ndarray, " row"], path: Path) -> Float[np.ndarray, "key dim"]:
    """Write the keys of some instances and of all labels, block by block."""
    labels = memory.label_keys()
    keys = np.lib.format.open_memmap(path, "w+", np.float32, (len(rows) + len(labels), memory.plan.dim))
    for part, wanted, first in (
        (memory.instance_keys, rows, 0),
        (labels, np.arange(len(labels)), len(rows)),
    ):
        for start in range(0, len(wanted), _BLOCK_KEYS):
            block = wanted[start : start + _BLOCK_KEYS]
            keys[first + start : first + start + len(block)] = part[block]
    return keys


def _keep_lines(path: Path, kept: Bool[np.ndarray, " line"], target: Path) -> None:
    with path.open("rb") as lines, target.open("wb") as file:
        file.writelines(line for line, keep in zip(lines, kept.tolist(), strict=False) if keep)
