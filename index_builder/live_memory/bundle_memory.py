"""The memory of a published bundle as a memory folder, for a compaction without the run.

An index that stores exact vectors gives back its keys. Other indexes store approximate codes, so the texts of their
keys are encoded again with the encoder of the bundle. The keys of labels can have another source than this encoder: an
adapter, or a mix with instances. Such keys cannot be computed from a bundle, so a sample of the stored codes is
compared with the vectors of their texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.choose_index import evenly_spaced_rows
from recollect.index_builder.errors import BuildError
from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.manifest import Manifest, Precision
from recollect.service.bundle.strings import StringTable
from recollect.service.console import print_status, progress_bar
from recollect.service.files import save_array, save_rows, write_lines
from recollect.service.milvus.collection import KeyCollection, open_searcher
from recollect.service.milvus.connection import Connection
from recollect.service.predictor.encoder import QueryEncoder
from recollect.service.predictor.searcher import KeyIndex, Keys, Searcher
from recollect.trainer.data.split import no_pairs
from recollect.trainer.memory.memory import Memory, MemoryPlan, open_memory, write_defaults

_BLOCK_KEYS, _BLOCK_TEXTS = 16_384, 1_024
# Number of texts whose vectors are compared with the stored codes of their keys, and their least similarity. Codes of
# eight bits for a dimension reach 0.9988 (MiniLM). Label keys that are mixed with instances with the weight 0.1 have
# 0.994.
_SAMPLE_TEXTS = 256
_LEAST_SIMILARITY: dict[Precision, float] = {"fp32": 0.997, "fp16": 0.997, "int8": 0.98}


# Reads keys by their rows.
Read = Callable[[Int[np.ndarray, " row"]], Float[np.ndarray, "row dim"]]


@dataclasses.dataclass(frozen=True)
class _Part:
    """The keys of one part of a bundle, `instance` or `label`.

    Attributes:
        name: The part.
        uids: Uids of the keys.
        texts: Texts of the keys.
        index: The index of the keys.
        read: Reads the keys of some rows exactly; None if the index has no exact keys.
    """

    name: str
    uids: StringTable
    texts: StringTable
    index: Keys
    read: Read | None

    def check(self, bundle: Bundle, encoder: QueryEncoder) -> None:
        """Check that the encoder of the bundle makes the keys from their texts.

        Raises:
            BuildError: If it does not, or if the codes of the index are too coarse for the check.
        """
        rows = evenly_spaced_rows(len(self.texts), _SAMPLE_TEXTS)
        vectors = self._encode(encoder, rows.tolist())
        found = [self.index.similarities(vector, rows[place : place + 1])[0] for place, vector in enumerate(vectors)]
        least = _LEAST_SIMILARITY[bundle.manifest.encoder.precision]
        if not min(found) >= least:
            raise BuildError(
                f"--run: required for version {bundle.manifest.version}, because its index of {self.name} keys stores "
                f"no exact vectors, and its keys are not the vectors of their texts (similarity {min(found):.4f}, "
                f"expected {least:g}); name the run from which the version was built"
            )

    def keys(self, encoder: QueryEncoder) -> Iterator[Float[np.ndarray, "block dim"]]:
        """Yield the keys, in blocks: those of the index, or newly encoded ones."""
        if self.read is not None:
            for start in range(0, len(self.texts), _BLOCK_KEYS):
                yield self.read(np.arange(start, min(start + _BLOCK_KEYS, len(self.texts))))
            return
        with progress_bar(len(self.texts), "text", f"encode {self.name}s") as bar:
            for start in range(0, len(self.texts), _BLOCK_TEXTS):
                block = range(start, min(start + _BLOCK_TEXTS, len(self.texts)))
                yield self._encode(encoder, block)
                bar.update(len(block))

    def _encode(self, encoder: QueryEncoder, rows: Sequence[int]) -> Float[np.ndarray, "row dim"]:
        texts = [self.texts[row] for row in rows]
        return encoder.encode_texts([], texts) if self.name == "label" else encoder.encode_texts(texts)


class BundleMemory:
    """The memory of a bundle, which can be written as a memory folder.

    Args:
        bundle: The bundle.
        encoder: Its encoder.
        milvus: The connection to Milvus, for a bundle whose keys are there.

    Raises:
        BuildError: If the keys can be neither read from the indexes nor computed with the encoder.
        EngineError: If Milvus does not answer.
    """

    def __init__(self, bundle: Bundle, encoder: QueryEncoder, milvus: Connection | None = None) -> None:
        self._bundle, self._encoder = bundle, encoder
        version, info = bundle.manifest.version, bundle.manifest.encoder
        if info.teacher is not None:
            raise BuildError(
                f"--run: required for version {version}, because its keys have another encoder ({info.teacher}) than "
                "its queries; name the run from which the version was built"
            )
        searcher = Searcher.open(bundle) if milvus is None else open_searcher(bundle.manifest, milvus)
        self._parts = [
            _open_part("instance", searcher.instances, bundle.instances.uids, bundle.instances.texts),
            _open_part("label", searcher.labels, bundle.labels.uids, bundle.labels.texts),
        ]
        for part in self._parts:
            if part.read is None:
                part.check(bundle, encoder)

    def write(self, folder: Path) -> Memory:
        """Write the memory, and open it.

        Args:
            folder: A folder that does not exist.
        """
        folder.mkdir(parents=True)
        for part in self._parts:
            source = "read from the index" if part.read else "encoded again, because the index stores no exact keys"
            print_status(f"compact: keys of {len(part.texts):,} {part.name}s {source}")
            texts = ({"uid": part.uids[row], "text": part.texts[row]} for row in range(len(part.texts)))
            write_lines(folder / f"{part.name}s.jsonl", texts)
        bundle, plan = self._bundle, _plan(self._bundle.manifest)
        blocks = (block for part in self._parts for block in part.keys(self._encoder))
        save_rows(folder / "keys.npy", (plan.keys, plan.dim), np.dtype(np.float32), blocks)
        save_array(folder / "value_indptr.npy", np.asarray(bundle.instances.values.indptr))
        save_array(folder / "value_indices.npy", np.asarray(bundle.instances.values.indices))
        save_array(folder / "filtered_pairs.npy", no_pairs())
        options = bundle.manifest.defaults
        defaults = {"lambda": options.lambda_, "temperature": options.temperature, "top_b": options.top_b}
        # The keys of labels are those of the bundle, which can be mixed with instances already.
        write_defaults(folder, plan, defaults | {"label_key_alpha": 0.0})
        return open_memory(folder)


def _open_part(name: str, index: Keys, uids: StringTable, texts: StringTable) -> _Part:
    read: Read | None = None
    if isinstance(index, KeyCollection):
        read = index.vectors
    elif isinstance(index, KeyIndex) and _is_exact(index.index):
        read = index.index.reconstruct_batch
    return _Part(name, uids, texts, index, read)


def _is_exact(index: Any) -> bool:
    """Whether an index stores its vectors in single precision, in the order of the rows."""
    vectors = index.storage if isinstance(index, faiss.IndexHNSW) else index
    return isinstance(faiss.downcast_index(vectors), faiss.IndexFlat)


def _plan(manifest: Manifest) -> MemoryPlan:
    """The plan for the keys of a bundle. It names the exported encoder, so no training accepts the memory."""
    info = manifest.encoder
    return MemoryPlan(
        instances=manifest.counts.instances,
        labels=manifest.counts.labels,
        dim=manifest.dim,
        key_dtype="float32",
        encoder={
            "name": info.name,
            "pooling": info.pooling,
            "max_length": info.max_length,
            "normalised": info.normalised,
        },
        encoder_sha256=manifest.files["encoder.onnx"].sha256,
        dataset_sha256=manifest.files["value_indices.npy"].sha256,
    )
