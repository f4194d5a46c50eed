"""The memory folder: keys K = [X; Z] and the labels each instance key votes for (RAE-XMC, Eq. 3 and 4).

    memory/   memory.json          counts, dimension, how the keys were made, defaults for scoring
              keys.npy             [N+L, d] unit vectors: instances first, then labels, in dataset order
              value_indptr.npy     [N+1]    instance i votes for its labels, its row of Y:
              value_indices.npy             value_indices[value_indptr[i] : value_indptr[i + 1]]
              labels.jsonl  instances.jsonl  {"uid", "text"}, row by row

A label key votes for its own label, so the identity that stands under Y in the paper is not stored; nor is lambda,
which is applied when a query is answered, nor are enriched label keys, which are mixed when a bundle is built
(`trainer.label_keys`): `memory.json` only names the weights to use. It is written last; until then `progress.json`
says how many keys are done, and a run that was interrupted goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from tqdm import tqdm

from trainer.data.split import Entries, LabelSets, Split, fingerprint
from trainer.encoder import Encoder
from trainer.errors import MemoryFolderError
from trainer.files import flush, save_array, write_json
from trainer.key_sources import KeySource
from trainer.label_keys import LabelKeys
from trainer.ranks import Ranks

FORMAT_VERSION = 1
KeyDtype = Literal["float32", "float16"]

# RAE-XMC, section 4: the settings of its own experiments; a label's key is its text's vector.
DEFAULTS: dict[str, float] = {"lambda": 0.5, "temperature": 0.04, "top_b": 200, "label_key_alpha": 0.0}

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

    @property
    def label_sets(self) -> LabelSets:
        """Y: the labels of each instance."""
        return LabelSets(self.value_indptr, self.value_indices)

    @property
    def instance_keys(self) -> Float[np.ndarray, "instance dim"]:
        return self.keys[: self.plan.instances]

    def label_keys(self, alpha: float | None = None) -> LabelKeys:
        """The label keys to search; `alpha` is the weight of the instances in them, by default the memory's own."""
        weight = self.defaults["label_key_alpha"] if alpha is None else alpha
        return LabelKeys(self.keys[self.plan.instances :], self.instance_keys, self.label_sets, float(weight))


def saved_plan(folder: Path) -> MemoryPlan | None:
    """The plan of the memory that `folder` holds, whole or begun; None if it holds none that can be read."""
    for name in ("memory.json", "progress.json"):
        if (folder / name).is_file():
            with contextlib.suppress(MemoryFolderError):
                return _read_header(folder / name)[0]
    return None


def differences(first: MemoryPlan, second: MemoryPlan) -> list[str]:
    """The attributes in which two plans differ."""
    return [name for name in vars(first) if getattr(first, name) != getattr(second, name)]


def check_same(folder: Path, plan: MemoryPlan, saved: MemoryPlan) -> None:
    """Refuse a memory that was made of something else.

    Raises:
        MemoryFolderError: Naming what differs.
    """
    if differs := differences(saved, plan):
        raise MemoryFolderError(
            f"{folder}: expected no other memory here, found one that differs in {', '.join(differs)}; "
            "choose another --out, or replace it with --overwrite"
        )


def is_complete(folder: Path) -> bool:
    return (folder / "memory.json").is_file()


def write_memory(
    folder: Path,
    plan: MemoryPlan,
    labels: Entries,
    instances: Split,
    source: KeySource,
    ranks: Ranks,
    label_key_alpha: float = 0.0,
) -> int:
    """Make the key of every instance and label once and write the memory, going on where an interrupted run stopped.

    Args:
        folder: Empty, absent, or holding a memory begun with the same plan.
        plan: What decides the content.
        labels: The label texts.
        instances: The training texts and their labels.
        source: Makes the keys.
        ranks: The processes that take part; the first one writes.
        label_key_alpha: Weight of the instances in label keys, to be used by default.

    Returns:
        How many keys were made now; the others were already done.
    """
    done = ranks.agree(_begin(folder, plan, labels, instances) if ranks.first else 0)
    with _open_keys(folder / "keys.npy", plan, done, ranks) as file, _progress_bar(plan.keys, done, ranks) as bar:
        for start, stop in _windows(plan, done):
            vectors = source.keys(start, stop, lambda rows: bar.update(rows * ranks.size))
            bar.update(stop - bar.n)  # shares may differ by a row
            if ranks.first:
                file.write(vectors.astype(plan.key_dtype).tobytes())
                flush(file)
                _write_progress(folder, plan, stop)
    if ranks.first:
        write_defaults(folder, plan, DEFAULTS | {"label_key_alpha": label_key_alpha})
        (folder / "progress.json").unlink()
    made: int = ranks.agree(plan.keys - done)  # the other ranks wait until all is written
    return made


def write_defaults(folder: Path, plan: MemoryPlan, defaults: dict[str, float]) -> None:
    """Write `memory.json`, which completes a memory, or gives a complete one other defaults."""
    write_json(folder / "memory.json", _header(plan) | {"defaults": defaults})


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
    return Memory(folder, plan, DEFAULTS | header["defaults"], keys, indptr, indices)


def _begin(folder: Path, plan: MemoryPlan, labels: Entries, instances: Split) -> int:
    """Write all but the keys, unless that is done; returns how many keys are done."""
    folder.mkdir(parents=True, exist_ok=True)
    done = _rows_done(folder, plan)
    if done == 0:
        _write_progress(folder, plan, 0)
        _write_entries(folder / "labels.jsonl", labels)
        _write_entries(folder / "instances.jsonl", instances.entries)
        save_array(folder / "value_indptr.npy", instances.labels.indptr)
        save_array(folder / "value_indices.npy", instances.labels.indices)
    return done


def _windows(plan: MemoryPlan, done: int) -> Iterator[tuple[int, int]]:
    """Where each stretch still to do starts and stops: instances, then labels."""
    for first, last in ((0, plan.instances), (plan.instances, plan.keys)):
        for start in range(max(done, first), last, _WINDOW_TEXTS):
            yield start, min(start + _WINDOW_TEXTS, last)


def _progress_bar(keys: int, done: int, ranks: Ranks) -> tqdm[None]:
    return tqdm(
        total=keys,
        initial=done,
        unit="text",
        unit_scale=True,
        desc="encode",
        dynamic_ncols=True,
        disable=not ranks.first,
    )


def _rows_done(folder: Path, plan: MemoryPlan) -> int:
    """How many rows of this plan are said to be done; none where `keys.npy` does not hold as many."""
    try:
        saved, header = _read_header(folder / "progress.json", "keys_done")
        done = int(header["keys_done"])
        with (folder / "keys.npy").open("rb") as keys:
            head, size = keys.read(len(_key_header(plan))), keys.seek(0, os.SEEK_END)
    except (OSError, ValueError, TypeError, MemoryFolderError):
        return 0
    whole = head == _key_header(plan) and size >= _key_bytes(plan, done)
    return done if saved == plan and whole else 0


def _open_keys(path: Path, plan: MemoryPlan, done: int, ranks: Ranks) -> BinaryIO:
    """`keys.npy` with its header, cut after the rows that are done, open for more; nowhere on other ranks."""
    if not ranks.first:
        return open(os.devnull, "wb")
    if done == 0:
        path.write_bytes(_key_header(plan))
    keys = path.open("r+b")
    keys.truncate(_key_bytes(plan, done))
    keys.seek(0, os.SEEK_END)
    return keys


def _key_header(plan: MemoryPlan) -> bytes:
    """How `keys.npy` begins."""
    header = {"descr": np.dtype(plan.key_dtype).str, "fortran_order": False, "shape": (plan.keys, plan.dim)}
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, header)
    return written.getvalue()


def _key_bytes(plan: MemoryPlan, rows: int) -> int:
    """Size of `keys.npy` once it holds so many rows."""
    return len(_key_header(plan)) + rows * plan.dim * np.dtype(plan.key_dtype).itemsize


def _write_entries(path: Path, entries: Entries) -> None:
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(entries), _WINDOW_TEXTS):
            batch = pa.table({"uid": entries.uids, "text": entries.texts}).slice(start, _WINDOW_TEXTS)
            for record in batch.to_pylist():
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        flush(file)


def _header(plan: MemoryPlan) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **dataclasses.asdict(plan)}


def _write_progress(folder: Path, plan: MemoryPlan, keys_done: int) -> None:
    write_json(folder / "progress.json", _header(plan) | {"keys_done": keys_done})


def _read_header(path: Path, *also: str) -> tuple[MemoryPlan, dict[str, Any]]:
    """The plan, and the whole header, which must hold `also` too."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if (version := header["format_version"]) != FORMAT_VERSION:
            raise MemoryFolderError(
                f"{path}: expected format_version {FORMAT_VERSION}, found {version}; run `recollect train` again"
            )
        plan = MemoryPlan(**{field.name: header[field.name] for field in dataclasses.fields(MemoryPlan)})
        for name in also:
            header[name]
        if not isinstance(header.get("defaults", {}), dict):
            raise TypeError("defaults are no object")
    except (ValueError, KeyError, TypeError) as error:
        raise MemoryFolderError(
            f"{path}: expected a memory's header, found: {error!r}; run `recollect train` again"
        ) from None
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
