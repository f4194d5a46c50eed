"""The memory folder: keys K = [X; Z] and the labels each instance key votes for (RAE-XMC, Eq. 3 and 4).

    memory/   memory.json          counts, dimension, how the keys were made, defaults for scoring
              keys.npy             [N+L, d] unit vectors: instances first, then labels, in dataset order
              value_indptr.npy     [N+1]    instance i votes for its labels, its row of Y:
              value_indices.npy             value_indices[value_indptr[i] : value_indptr[i + 1]]
              labels.jsonl  instances.jsonl  {"uid", "text"}, row by row

A label key votes for its own label, so the identity that stands under Y in the paper is not stored; nor is lambda,
which is applied when a query is answered. `memory.json` is written last; until then
`progress.json` says how many keys are done, and a run that was interrupted goes on from there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from tqdm import tqdm

from trainer.dataset import Entries, Split, fingerprint
from trainer.encoder import Encoder
from trainer.errors import MemoryFolderError

FORMAT_VERSION = 1
KeyDtype = Literal["float32", "float16"]

# RAE-XMC, section 4: the settings of its own experiments.
DEFAULTS: dict[str, float] = {"lambda": 0.5, "temperature": 0.04, "top_b": 200}

# Texts encoded between two saves: sorted by length among themselves, and all that an interruption can lose.
_WINDOW_TEXTS = 4_096


@dataclass(frozen=True)
class MemoryPlan:
    """All that decides a memory's content: two equal plans make equal memories."""

    instances: int
    labels: int
    dim: int
    key_dtype: KeyDtype
    encoder: dict[str, Any]
    encoder_sha256: str
    dataset_sha256: str

    @classmethod
    def of(
        cls, labels: Entries, instances: Split, encoder: Encoder, encoder_sha256: str, key_dtype: KeyDtype
    ) -> MemoryPlan:
        return cls(
            instances=len(instances),
            labels=len(labels),
            dim=encoder.dim,
            key_dtype=key_dtype,
            encoder=dataclasses.asdict(encoder.config),
            encoder_sha256=encoder_sha256,
            dataset_sha256=fingerprint(labels, instances),
        )

    @property
    def keys(self) -> int:
        return self.instances + self.labels


@dataclass(frozen=True)
class Memory:
    """An opened memory folder; its arrays are mapped, not read."""

    folder: Path
    plan: MemoryPlan
    defaults: dict[str, float]
    keys: Float[np.ndarray, "key dim"]
    value_indptr: Int[np.ndarray, " pointer"]
    value_indices: Int[np.ndarray, " pair"]


def saved_plan(folder: Path) -> MemoryPlan | None:
    """The plan of the memory that `folder` holds, whole or begun; None if it holds none."""
    for name in ("memory.json", "progress.json"):
        if (folder / name).is_file():
            return _read_header(folder / name)[0]
    return None


def is_complete(folder: Path) -> bool:
    return (folder / "memory.json").is_file()


def write_memory(folder: Path, plan: MemoryPlan, labels: Entries, instances: Split, encoder: Encoder) -> int:
    """Encode every instance and label once and write the memory, going on where an interrupted run stopped.

    Args:
        folder: Empty, absent, or holding a memory begun with the same plan.
        plan: What `MemoryPlan.of` says of the other arguments.
        labels: The label texts.
        instances: The training texts and their labels.
        encoder: Makes the keys.

    Returns:
        How many texts were encoded now; the others were already done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = _rows_done(folder, plan)
    if done == 0:
        _write_progress(folder, plan, 0)
        _write_entries(folder / "labels.jsonl", labels)
        _write_entries(folder / "instances.jsonl", instances.entries)
        _save_array(folder / "value_indptr.npy", instances.labels.indptr)
        _save_array(folder / "value_indices.npy", instances.labels.indices)
    with _open_keys(folder / "keys.npy", plan, done) as file, _progress_bar(plan.keys, done) as bar:
        for start, texts, max_length in _windows(labels, instances.entries, encoder, done):
            vectors = encoder.encode(texts, max_length, bar.update)
            file.write(vectors.astype(plan.key_dtype).tobytes())
            _flush(file)
            _write_progress(folder, plan, start + len(texts))
    _write_json(folder / "memory.json", _header(plan) | {"defaults": DEFAULTS})
    (folder / "progress.json").unlink()
    return plan.keys - done


def open_memory(folder: Path) -> Memory:
    """Map a memory that `write_memory` finished.

    Raises:
        MemoryFolderError: If it is missing, unfinished, of an unknown format, or its files disagree.
    """
    path = folder / "memory.json"
    if not path.is_file():
        found = "one that is not finished" if (folder / "progress.json").is_file() else "none"
        raise MemoryFolderError(f"{folder}: expected a memory, found {found}; run `recollect train` (again)")
    plan, header = _read_header(path, "defaults")
    keys = _map_array(folder / "keys.npy", (plan.keys, plan.dim), plan.key_dtype)
    indptr = _map_array(folder / "value_indptr.npy", (plan.instances + 1,), "int64")
    indices = _map_array(folder / "value_indices.npy", (int(indptr[-1]),), "int32")
    if (np.diff(indptr) < 0).any() or (len(indices) and not 0 <= indices.min() <= indices.max() < plan.labels):
        raise MemoryFolderError(f"{folder}: values point past the {plan.labels:,} labels; run `recollect train` again")
    return Memory(folder, plan, header["defaults"], keys, indptr, indices)


def _windows(labels: Entries, instances: Entries, encoder: Encoder, done: int) -> Iterator[tuple[int, list[str], int]]:
    """First row, texts and length limit of each stretch still to encode: instances, then labels."""
    config = encoder.config
    first_row = 0
    for entries, max_length in ((instances, config.max_length), (labels, config.label_max_length)):
        for start in range(max(0, done - first_row), len(entries), _WINDOW_TEXTS):
            yield first_row + start, entries.texts[start : start + _WINDOW_TEXTS].to_pylist(), max_length
        first_row += len(entries)


def _progress_bar(keys: int, done: int) -> tqdm[None]:
    return tqdm(total=keys, initial=done, unit="text", unit_scale=True, desc="encode", dynamic_ncols=True)


def _rows_done(folder: Path, plan: MemoryPlan) -> int:
    path = folder / "progress.json"
    if not path.is_file() or not (folder / "keys.npy").is_file():
        return 0
    saved, header = _read_header(path, "keys_done")
    return int(header["keys_done"]) if saved == plan else 0


def _open_keys(path: Path, plan: MemoryPlan, done: int) -> BinaryIO:
    """`keys.npy` with its header, cut after the rows that are done, open for more."""
    if done == 0:
        header = {"descr": np.dtype(plan.key_dtype).str, "fortran_order": False, "shape": (plan.keys, plan.dim)}
        with path.open("wb") as created:
            np.lib.format.write_array_header_1_0(created, header)
    with path.open("rb") as begun:
        np.lib.format.read_magic(begun)
        np.lib.format.read_array_header_1_0(begun)
        data = begun.tell()
    size = data + done * plan.dim * np.dtype(plan.key_dtype).itemsize
    if (found := path.stat().st_size) < size:  # truncate would fill it up with zeros
        raise MemoryFolderError(f"{path}: expected at least {size:,} bytes, found {found:,}; give --overwrite")
    keys = path.open("r+b")
    keys.truncate(size)
    keys.seek(0, os.SEEK_END)
    return keys


def _write_entries(path: Path, entries: Entries) -> None:
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(entries), _WINDOW_TEXTS):
            batch = pa.table({"uid": entries.uids, "text": entries.texts}).slice(start, _WINDOW_TEXTS)
            for record in batch.to_pylist():
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        _flush(file)


def _save_array(path: Path, array: np.ndarray) -> None:
    """As `np.save`, which does not notice a disk that fills up while its last bytes are written."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
        _flush(file)


def _header(plan: MemoryPlan) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **dataclasses.asdict(plan)}


def _write_progress(folder: Path, plan: MemoryPlan, keys_done: int) -> None:
    _write_json(folder / "progress.json", _header(plan) | {"keys_done": keys_done})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    aside = path.with_name(f".{path.name}-incoming")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        _flush(file)
    aside.replace(path)


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_header(path: Path, *also: str) -> tuple[MemoryPlan, dict[str, Any]]:
    """The plan, and the whole header, which must hold `also` too."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if (version := header["format_version"]) != FORMAT_VERSION:
            raise MemoryFolderError(f"{path}: expected format_version {FORMAT_VERSION}, found {version}; train again")
        plan = MemoryPlan(**{field.name: header[field.name] for field in dataclasses.fields(MemoryPlan)})
        for name in also:
            header[name]
    except (ValueError, KeyError, TypeError) as error:
        raise MemoryFolderError(f"{path}: expected a memory's header, found: {error!r}; train again") from None
    return plan, header


def _map_array(path: Path, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    try:
        mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise MemoryFolderError(f"{path}: expected an array, found: {error}; run `recollect train` again") from None
    if mapped.shape != shape or mapped.dtype != dtype:
        raise MemoryFolderError(
            f"{path}: expected {dtype} of shape {shape}, found {mapped.dtype} of shape {mapped.shape}; "
            "run `recollect train` again"
        )
    return mapped
