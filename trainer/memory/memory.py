"""The memory folder: the keys K = [X; Z] and the labels of each instance key (RAE-XMC, Eq. 3 and 4).

    memory/   memory.json          counts, dimension, the encoder of the keys, defaults for scoring
              keys.npy             [N+L, d] unit vectors (without `--no-normalise`): instances, then labels
              value_indptr.npy     [N+1]    instance i votes for its labels, row i of Y:
              value_indices.npy             value_indices[value_indptr[i] : value_indptr[i + 1]]
              filtered_pairs.npy  [P, 2]    pairs (instance, label): when the instance is a query, the label is removed
                                            from its predictions
              labels.jsonl  instances.jsonl  {"uid", "text"}, row by row; labels with their fields
              dataset.json                  the layout and the flags with which `recollect train` read the dataset
              query_vectors.npy  [N, d]      with a distilled query encoder: its vectors of the instances

Three things are not stored. A label key votes for its own label, so the identity below Y in the paper is implicit.
Lambda is applied when a query is answered. Enriched label keys are computed when a bundle is built
(`recollect.trainer.memory.label_keys`); `memory.json` only stores their weight `label_key_alpha`.

`recollect.trainer.memory.memory_writer` writes the folder. It writes `memory.json` last. While `memory.json` is absent,
`progress.json` stores the number of finished keys, so that an interrupted run can continue.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.core.bundle.values import Matrix, Values
from recollect.core.system.files import read_json, write_json
from recollect.trainer.data.split import Entries, LabelSets, Split, fingerprint
from recollect.trainer.encoding.encoder import Encoder, EncodingPrecision
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.held_out import HeldOutTexts
from recollect.trainer.memory.label_keys import LabelKeys

FORMAT_VERSION = 2
QUERY_VECTORS = "query_vectors.npy"
DATASET = "dataset.json"
KeyDtype = Literal["float32", "float16"]

# Default scoring settings, from the experiments in RAE-XMC, section 4. With alpha 0, the key of a label is the vector
# of its text.
DEFAULTS: dict[str, float] = {"lambda": 0.5, "temperature": 0.04, "top_b": 200, "label_key_alpha": 0.0}


@dataclass(frozen=True)
class MemoryPlan:
    """Everything that determines the content of a memory: equal plans give equal memories, up to rounding.

    Attributes:
        precision: The precision in which the transformer encoded the texts. It does not make plans unequal.
    """

    instances: int
    labels: int
    dim: int
    key_dtype: KeyDtype
    encoder: dict[str, Any]
    encoder_sha256: str
    dataset_sha256: str
    precision: EncodingPrecision = field(default="fp32", compare=False)

    @classmethod
    def of(
        cls, labels: Entries, instances: Split, encoder: Encoder, encoder_sha256: str, key_dtype: KeyDtype
    ) -> MemoryPlan:
        return cls(
            instances=len(instances),
            labels=len(labels),
            dim=encoder.dim,
            key_dtype=key_dtype,
            encoder=encoder.config.as_json(),
            encoder_sha256=encoder_sha256,
            dataset_sha256=fingerprint(labels, instances),
            precision=encoder.precision,
        )

    @property
    def keys(self) -> int:
        """Number of keys, N + L."""
        return self.instances + self.labels


@dataclass(frozen=True)
class Memory:
    """An open memory folder. The arrays are memory-mapped.

    Attributes:
        distilled: The distilled query encoder's vectors of the instances. None: queries have the encoder of the keys.
    """

    folder: Path
    plan: MemoryPlan
    defaults: dict[str, float]
    keys: Float[np.ndarray, "key dim"]
    value_indptr: Int[np.ndarray, " pointer"]
    value_indices: Int[np.ndarray, " pair"]
    filtered_pairs: Int[np.ndarray, "filtered 2"]
    distilled: Float[np.ndarray, "instance dim"] | None = None

    @property
    def filtered_labels(self) -> LabelSets:
        """The labels that are removed from the predictions for each instance."""
        return LabelSets.of_pairs(self.filtered_pairs, self.plan.instances)

    @property
    def label_sets(self) -> LabelSets:
        """The labels of each instance, the rows of the relevance matrix Y."""
        return LabelSets(self.value_indptr, self.value_indices)

    @property
    def values(self) -> Values:
        """The values of all keys, as the service scores them."""
        return Values(Matrix(self.value_indptr, self.value_indices), self.plan.labels)

    @property
    def relevance(self) -> sparse.csr_matrix:
        """The relevance matrix Y, with the axes (instance, label)."""
        return self.label_sets.to_csr(self.plan.labels)

    @property
    def label_counts(self) -> Int[np.ndarray, " label"]:
        """Number of instances of each label."""
        return np.bincount(self.value_indices, minlength=self.plan.labels)

    @property
    def instance_keys(self) -> Float[np.ndarray, "instance dim"]:
        return self.keys[: self.plan.instances]

    @property
    def is_normalised(self) -> bool:
        """Whether the encoder normalises its vectors. Otherwise, keys have any length."""
        return bool(self.plan.encoder.get("normalised", True))

    @property
    def held_out(self) -> HeldOutTexts:
        """The texts from which the encoder of the keys has not learnt."""
        return HeldOutTexts.of_json(self.plan.encoder.get("held_out"))

    def queries(self, rows: slice | Int[np.ndarray, " query"]) -> Float[np.ndarray, "query dim"]:
        """The vectors of some instances as queries: those of their keys, unless queries have a distilled encoder."""
        if self.distilled is not None:
            return np.asarray(self.distilled[rows], dtype=np.float32)
        return np.asarray(self.instance_keys[rows], dtype=np.float32)

    def label_keys(self, alpha: float | None = None) -> LabelKeys:
        """The label keys for search.

        Args:
            alpha: Weight of the instances in a label key; None means the default of the memory.
        """
        weight = self.defaults["label_key_alpha"] if alpha is None else alpha
        return LabelKeys(self.keys[self.plan.instances :], self.instance_keys, self.label_sets, float(weight))


def open_memory(folder: Path) -> Memory:
    """Open a finished memory.

    Raises:
        MemoryFolderError: If the memory is missing, unfinished or in an unknown format, or if its files disagree.
    """
    path = folder / "memory.json"
    if not path.is_file():
        found = "one that is not finished" if (folder / "progress.json").is_file() else "none"
        raise MemoryFolderError(f"{folder}: expected a memory, found {found}; run `recollect train` (again)")
    plan, fields = read_header(path, "defaults")
    keys = _map_array(folder / "keys.npy", (plan.keys, plan.dim), plan.key_dtype)
    indptr = _map_array(folder / "value_indptr.npy", (plan.instances + 1,), "int64")
    indices = _map_array(folder / "value_indices.npy", (int(indptr[-1]),), "int32")
    if (np.diff(indptr) < 0).any() or (len(indices) and not 0 <= indices.min() <= indices.max() < plan.labels):
        raise MemoryFolderError(
            f"{folder}: expected instances to vote for labels below {plan.labels:,}, found others; "
            "run `recollect train` again"
        )
    filtered, limits = _map_array(folder / "filtered_pairs.npy", None, "int64"), [plan.instances, plan.labels]
    if filtered.ndim != 2 or filtered.shape[1] != 2 or (filtered < 0).any() or (filtered >= limits).any():
        raise MemoryFolderError(
            f"{folder}/filtered_pairs.npy: expected pairs of an instance below {plan.instances:,} and a label "
            f"below {plan.labels:,}, found others; run `recollect train` again"
        )
    distilled = None
    if (folder / QUERY_VECTORS).exists():
        distilled = _map_array(folder / QUERY_VECTORS, (plan.instances, plan.dim), plan.key_dtype)
    return Memory(folder, plan, DEFAULTS | fields["defaults"], keys, indptr, indices, filtered, distilled)


def read_texts(path: Path) -> Iterator[str]:
    """Yield the texts of `instances.jsonl` or `labels.jsonl`.

    Raises:
        MemoryFolderError: If a line has no text.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield str(json.loads(line)["text"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MemoryFolderError(
            f"{path}: expected JSON lines with a text, found: {error!r}; run `recollect train` again"
        ) from None


def read_dataset_flags(folder: Path) -> dict[str, Any]:
    """The layout and the flags with which the dataset of a memory was read; empty if the memory does not know them.

    Raises:
        MemoryFolderError: If the file is damaged.
    """
    path = folder / DATASET
    if not path.is_file():
        return {}
    try:
        saved = read_json(path)
        flags: dict[str, Any] = saved["flags"]
        if saved["format_version"] != 1 or not isinstance(flags, dict):
            raise ValueError(f"{saved!r:.80}")
    except (ValueError, KeyError, TypeError) as error:
        raise MemoryFolderError(
            f"{path}: expected the flags of a dataset of format_version 1, found: {error!r}; train again"
        ) from None
    return flags


def write_dataset_flags(folder: Path, flags: Mapping[str, Any]) -> None:
    write_json(folder / DATASET, {"format_version": 1, "flags": {**flags}})


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds a finished memory."""
    return (folder / "memory.json").is_file()


def saved_plan(folder: Path) -> MemoryPlan | None:
    """The plan of the finished or unfinished memory in `folder`; None if there is no readable memory."""
    for name in ("memory.json", "progress.json"):
        if (folder / name).is_file():
            with contextlib.suppress(MemoryFolderError):
                return read_header(folder / name)[0]
    return None


def differences(first: MemoryPlan, second: MemoryPlan) -> list[str]:
    """Names of the attributes in which two plans differ."""
    compared = [each.name for each in dataclasses.fields(MemoryPlan) if each.compare]
    return [name for name in compared if getattr(first, name) != getattr(second, name)]


def check_same_plan(folder: Path, plan: MemoryPlan, saved: MemoryPlan) -> None:
    """Check that the memory in `folder` has the expected plan.

    Raises:
        MemoryFolderError: If the plans differ. The message names the differences.
    """
    if differs := differences(saved, plan):
        raise MemoryFolderError(
            f"{folder}: expected no other memory here, found one that differs in {', '.join(differs)}; "
            "choose another --out, or replace it with --overwrite"
        )


def write_defaults(folder: Path, plan: MemoryPlan, defaults: dict[str, float]) -> None:
    """Write `memory.json`. The file completes a memory. Writing it again changes only the defaults."""
    write_json(folder / "memory.json", header(plan) | {"defaults": defaults})


def header(plan: MemoryPlan) -> dict[str, Any]:
    """The fields that `memory.json` and `progress.json` share."""
    return {"format_version": FORMAT_VERSION, **dataclasses.asdict(plan)}


def read_header(path: Path, *required: str) -> tuple[MemoryPlan, dict[str, Any]]:
    """Read `memory.json` or `progress.json`.

    Args:
        required: Further fields that the file must contain.

    Returns:
        The plan, and all fields.

    Raises:
        MemoryFolderError: If a field is missing or invalid.
    """
    try:
        fields = read_json(path)
        if (version := fields["format_version"]) != FORMAT_VERSION:
            raise MemoryFolderError(
                f"{path}: expected format_version {FORMAT_VERSION}, found {version}; run `recollect train` again"
            )
        fields = {"precision": "fp32"} | fields  # earlier memories do not name it
        plan = MemoryPlan(**{each.name: fields[each.name] for each in dataclasses.fields(MemoryPlan)})
        if plan.precision not in get_args(EncodingPrecision):
            raise ValueError(f"precision {plan.precision!r}")
        for name in required:
            fields[name]
        HeldOutTexts.of_json(plan.encoder.get("held_out"))
        if not isinstance(fields.get("defaults", {}), dict):
            raise TypeError("defaults is not an object")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MemoryFolderError(
            f"{path}: expected a memory's header, found: {error!r}; run `recollect train` again"
        ) from None
    return plan, fields


def _map_array(path: Path, shape: tuple[int, ...] | None, dtype: str) -> np.ndarray:
    try:
        mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise MemoryFolderError(f"{path}: expected an array, found: {error}; run `recollect train` again") from None
    if mapped.shape != (shape or mapped.shape) or mapped.dtype != dtype:
        raise MemoryFolderError(
            f"{path}: expected {dtype} of shape {shape}, found {mapped.dtype} of shape {mapped.shape}; "
            "run `recollect train` again"
        )
    return mapped
