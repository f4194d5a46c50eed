"""`recollect build --compact`: make the served memory from the memory of a run, and measure each step.

The methods run in a fixed order: rotate, merge, prune. So similarities are compared in the vectors that are served. The
keys of labels are computed from all instances, as without compaction.

Word index, word weight, probabilities and golden queries are made from the served memory. Lambda, tau and b stay those
of the run. A ranker is refused, because it was fitted to the votes of all keys.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.index_builder.compaction.measure import choose_measured, measure_step, print_steps
from recollect.index_builder.compaction.merge import find_leaders
from recollect.index_builder.compaction.methods import Methods
from recollect.index_builder.compaction.prune import Pruning
from recollect.index_builder.compaction.rotation import fit_rotation, rotate_memory
from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.errors import BuildError
from recollect.service.bundle.manifest import Compaction
from recollect.service.files import save_rows
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.memory import Memory

_BLOCK_KEYS = 16_384
_NO_SPACE = errno.ENOSPC, errno.EDQUOT


@contextlib.contextmanager
def compacted(memory: Memory, run: Path, methods: Methods) -> Iterator[ServedMemory]:
    """Make the memory that the bundle serves. Its new arrays are in a temporary folder.

    Raises:
        BuildError: If the rotation is impossible, the memory is damaged, or the disk of the temporary folder is full.
    """
    if not methods.names:
        yield ServedMemory.whole(memory)
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            served = compact(memory, run, methods, Path(folder))
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise BuildError(
                f"{folder}: expected room for the compacted keys, found: {error.strerror}; set TMPDIR to a folder on a "
                "larger disk"
            ) from None
        yield served


def compact(memory: Memory, run: Path, methods: Methods, folder: Path) -> ServedMemory:
    """Make the memory that the bundle serves.

    Args:
        memory: The memory of the run.
        run: The run folder, which records the held-out instances.
        methods: The methods, at least one.
        folder: An empty folder for the new arrays, which must exist as long as the result is used.

    Raises:
        BuildError: If the rotation is impossible, or the memory is damaged.
    """
    if methods.dim is not None and not memory.is_normalised:
        raise BuildError(
            f"--compact pca:{methods.dim}: expected a memory of normalised vectors, because a rotation mixes the two "
            f"coordinates that keep lengths, found {memory.folder}, trained with --no-normalise; use merge or prune"
        )
    served = ServedMemory.whole(memory)
    rows, reductions = choose_measured(memory, run), list(_reductions(methods))
    kept = np.ones(memory.plan.instances, dtype=bool)
    kept[rows] = False
    separate = bool(reductions) and kept.any()
    trial = _select(served, kept, folder / "trial") if separate else served
    steps = [measure_step("none", served, trial, rows)]
    if methods.dim is not None:
        rotation = fit_rotation(memory, methods.dim)
        served = _rotated(served, rotation, folder / "rotated")
        trial = _rotated(trial, rotation, folder / "rotated trial", served.memory) if separate else served
        steps.append(measure_step(methods.names[0], served, trial, rows))
    for name, fewer in reductions:
        served, trial = fewer(served, folder / name), fewer(trial, folder / f"{name} trial")
        steps.append(measure_step(name, served, trial, rows))
    print_steps(steps)
    compaction = Compaction(instances=memory.plan.instances, steps=steps)
    return dataclasses.replace(served, compaction=compaction, trial=trial if reductions else None)


def _rotated(
    served: ServedMemory, rotation: Float[np.ndarray, "dim served_dim"], folder: Path, full: Memory | None = None
) -> ServedMemory:
    """Rotate all vectors. `full` is the rotated memory of the run; None: it is the served memory itself."""
    folder.mkdir()
    rotated = rotate_memory(served.memory, rotation, folder)
    return dataclasses.replace(served, memory=rotated, full=full or rotated, rotation=rotation)


def _reductions(methods: Methods) -> Iterator[tuple[str, Callable[[ServedMemory, Path], ServedMemory]]]:
    """Yield the chosen methods that make the keys fewer."""
    names = {name.partition(":")[0]: name for name in methods.names}
    if methods.similarity is not None:
        yield names["merge"], functools.partial(_merged, methods.similarity)
    if methods.floor is not None:
        yield names["prune"], functools.partial(_pruned, methods.floor)


def _merged(similarity: float, served: ServedMemory, folder: Path) -> ServedMemory:
    leaders = find_leaders(served.memory, similarity)
    counts = np.bincount(leaders, minlength=len(leaders)).astype(np.float32)
    led = dataclasses.replace(served, own=_follow(served.own, leaders), counts=counts)
    return _select(led, leaders == np.arange(len(leaders)), folder)


def _pruned(floor: int, served: ServedMemory, folder: Path) -> ServedMemory:
    pruning = Pruning(served, floor)
    pruning.run()
    handed_over = dataclasses.replace(
        served, own=_follow(served.own, pruning.heirs), counts=pruning.counts.astype(np.float32)
    )
    return _select(handed_over, pruning.kept, folder)


def _follow(own: Int[np.ndarray, " instance"], moved: Int[np.ndarray, " key"]) -> Int[np.ndarray, " instance"]:
    """The new row of each key; -1 stays -1."""
    return np.where(own < 0, -1, moved[own])


def _select(served: ServedMemory, kept: Bool[np.ndarray, " instance"], folder: Path) -> ServedMemory:
    """Keep only some instances of the served memory, and write their keys and texts to a folder."""
    folder.mkdir()
    memory, places = served.memory, np.where(kept, np.cumsum(kept) - 1, -1)
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
    return dataclasses.replace(served, memory=selected, own=_follow(served.own, places), counts=counts)


def _write_keys(memory: Memory, rows: Int[np.ndarray, " row"], path: Path) -> Float[np.ndarray, "key dim"]:
    """Write the keys of some instances and of all labels."""
    labels = memory.label_keys()
    parts = (memory.instance_keys, rows), (labels, np.arange(len(labels)))
    blocks = (
        part[wanted[start : start + _BLOCK_KEYS]]
        for part, wanted in parts
        for start in range(0, len(wanted), _BLOCK_KEYS)
    )
    return save_rows(path, (len(rows) + len(labels), memory.plan.dim), np.dtype(np.float32), blocks)


def _keep_lines(path: Path, kept: Bool[np.ndarray, " line"], target: Path) -> None:
    with path.open("rb") as lines, target.open("wb") as file:
        file.writelines(line for line, keep in zip(lines, kept.tolist(), strict=False) if keep)
