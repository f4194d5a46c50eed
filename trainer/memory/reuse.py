"""`--vectors`: keys of an earlier run, reused for the texts that have not changed.

A text is recognised by its digest, not by its row or its uid. Instances and labels are compared separately, because
they are cut after different numbers of tokens.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from recollect.trainer.data.split import Entries
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.memory.memory import KeyDtype, Memory, MemoryPlan, open_memory, read_texts

# Settings of an encoder that determine the vector of a text, besides the weights. Its name does not.
_ENCODER_SETTINGS = ("pooling", "max_length", "label_max_length", "layers", "query_prompt", "label_prompt")


@dataclass(frozen=True)
class ReusableKeys:
    """The row of each text's key in the memory of an earlier run; -1 for a new or changed text.

    Attributes:
        rows: The rows for the instances, then for the labels.
    """

    memory: Memory
    rows: Int[np.ndarray, " key"]

    @property
    def missing(self) -> int:
        """Number of texts to encode."""
        return int((self.rows < 0).sum())


def open_earlier(given: Path, encoder: Encoder, encoder_sha256: str, key_dtype: KeyDtype) -> Memory:
    """Open the memory of an earlier run, and check that the same encoder wrote it.

    A run with an adapter has two memories: `memory/` with the adapter, and `frozen/` without it.

    Args:
        given: The run folder, or a memory folder.

    Raises:
        MemoryFolderError: If there is no memory, another encoder or other settings wrote it, or its keys are less
            precise than the new ones.
    """
    memories = [open_memory(given / name) for name in ("memory", "frozen") if (given / name).is_dir()]
    memories = memories or [open_memory(given)]
    memory = next((each for each in memories if each.plan.encoder_sha256 == encoder_sha256), memories[0])
    saved = memory.plan
    own = encoder.config.as_json()
    differs = [name for name in _ENCODER_SETTINGS if saved.encoder.get(name) != own.get(name)]
    differs += ["encoder_sha256"] if saved.encoder_sha256 != encoder_sha256 else []
    differs += ["key_dtype"] if saved.key_dtype != "float32" and saved.key_dtype != key_dtype else []
    if differs:
        raise MemoryFolderError(
            f"--vectors {given}: expected {key_dtype} keys of this encoder, found a memory that differs in "
            f"{', '.join(differs)}; omit the flag, or write such a memory with --epochs 0"
        )
    return memory


def find_reusable(memory: Memory, plan: MemoryPlan, labels: Entries, instances: Entries) -> ReusableKeys:
    """Find the key of each text of a dataset in an earlier memory.

    Args:
        memory: The earlier memory, which the same encoder wrote, without an adapter or a head.

    Raises:
        MemoryFolderError: If the texts of the memory cannot be read.
    """
    rows = np.empty(plan.keys, dtype=np.int64)
    rows[: plan.instances] = _match(instances.texts, memory.folder / "instances.jsonl", memory.plan.instances)
    found = _match(labels.texts, memory.folder / "labels.jsonl", memory.plan.labels)
    rows[plan.instances :] = np.where(found < 0, -1, found + memory.plan.instances)
    return ReusableKeys(memory, rows)


def has_labels(memory: Path, labels: Entries) -> bool:
    """Whether a memory folder has labels with these texts, in the same order."""
    path = memory / "labels.jsonl"
    if not path.is_file():
        return False
    pairs = itertools.zip_longest(read_texts(path), labels.texts.to_pylist())
    return all(saved == own for saved, own in pairs)


def _match(texts: pa.LargeStringArray, path: Path, rows: int) -> Int[np.ndarray, " text"]:
    """The row of each text in a file of texts; -1 for a text that the file does not have."""
    row_of = {_digest(text): row for row, text in enumerate(read_texts(path))}
    if len(row_of) > rows or (rows and max(row_of.values()) != rows - 1):
        raise MemoryFolderError(f"{path}: expected {rows:,} lines, found another number; omit --vectors")
    return np.fromiter((row_of.get(_digest(text.as_py()), -1) for text in texts), dtype=np.int64, count=len(texts))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
