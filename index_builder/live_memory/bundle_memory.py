"""The memory of a published bundle, for a compaction without the run.

An index that stores exact vectors gives back its keys. Other indexes store approximate codes, so the texts of their
keys are encoded again with the encoder of the bundle. The keys of labels can have another source than this encoder: an
adapter, or a mix with instances. Such keys cannot be computed from a bundle, so a sample of the stored codes is
compared with the vectors of their texts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.manifest import Precision
from recollect.core.bundle.strings import StringTable
from recollect.core.encoder import TextEncoder
from recollect.core.search.searcher import KeyIndex, Keys, Searcher
from recollect.core.settings import EngineSettings
from recollect.core.system.console import print_status, progress_bar
from recollect.core.system.files import save_rows
from recollect.index_builder.choose_index import evenly_spaced_rows
from recollect.index_builder.errors import BuildError
from recollect.trainer.data.split import no_pairs
from recollect.trainer.memory.memory import Memory, MemoryPlan

_BLOCK_KEYS, _BLOCK_TEXTS = 16_384, 1_024
# Number of texts whose vectors are compared with the stored codes of their keys, and their least similarity. Codes of
# eight bits for a dimension reach 0.9988 (MiniLM). Label keys that are mixed with instances with the weight 0.1 have
# 0.994.
_SAMPLE_TEXTS = 256
_MIN_SIMILARITY: dict[Precision, float] = {"fp32": 0.997, "fp16": 0.997, "int8": 0.98}


# Reads keys by their rows.
Read = Callable[[Int[np.ndarray, " row"]], Float[np.ndarray, "row dim"]]


@dataclasses.dataclass(frozen=True)
class _Part:
    """The keys of one part of a bundle, `instance` or `label`."""

    name: str
    texts: StringTable
    index: Keys

    @property
    def read(self) -> Read | None:
        """Reads the keys of some rows exactly; None if the index has no exact keys."""
        if (vectors := getattr(self.index, "vectors", None)) is not None:  # of an engine
            stored: Read = vectors
            return stored
        if isinstance(self.index, KeyIndex) and _is_exact(self.index.index):
            reconstruct: Read = self.index.index.reconstruct_batch
            return reconstruct
        return None

    def check(self, bundle: Bundle, encoder: TextEncoder) -> None:
        """Raise `BuildError` if the encoder of the bundle does not make the keys from their texts."""
        rows = evenly_spaced_rows(len(self.texts), _SAMPLE_TEXTS)
        vectors = self._encode(encoder, rows.tolist())
        lowest = min(
            self.index.similarities(vector, rows[place : place + 1])[0] for place, vector in enumerate(vectors)
        )
        minimum = _MIN_SIMILARITY[bundle.manifest.encoder.precision]
        if not lowest >= minimum:
            raise BuildError(
                f"--run: required for version {bundle.manifest.version}, because its index of {self.name} keys stores "
                f"no exact vectors, and its keys are not the vectors of their texts (similarity {lowest:.4f}, "
                f"expected {minimum:g}); name the run from which the version was built"
            )

    def keys(self, encoder: TextEncoder) -> Iterator[Float[np.ndarray, "block dim"]]:
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

    def _encode(self, encoder: TextEncoder, rows: Sequence[int]) -> Float[np.ndarray, "row dim"]:
        texts = [self.texts[row] for row in rows]
        return encoder.encode_texts([], texts) if self.name == "label" else encoder.encode_texts(texts)


def read_bundle_memory(bundle: Bundle, encoder: TextEncoder, folder: Path, engine: EngineSettings) -> Memory:
    """Read the memory of a bundle, and write its keys into a folder.

    Raises:
        BuildError: If the keys can be neither read from the indexes nor computed with the encoder.
        EngineError: If the engine does not answer.
    """
    manifest = bundle.manifest
    version, info, options = manifest.version, manifest.encoder, manifest.defaults
    if info.teacher is not None:
        raise BuildError(
            f"--run: required for version {version}, because its keys have another encoder ({info.teacher}) than its "
            "queries; name the run from which the version was built"
        )
    # The plan names the exported encoder, so no training accepts the memory.
    plan = MemoryPlan(
        instances=manifest.counts.instances,
        labels=manifest.counts.labels,
        dim=manifest.dim,
        key_dtype="float32",
        encoder={name: getattr(info, name) for name in ("name", "pooling", "max_length", "normalised")},
        encoder_sha256=manifest.files["encoder.onnx"].sha256,
        dataset_sha256=manifest.files["value_indices.npy"].sha256,
    )
    with contextlib.closing(Searcher.open(bundle, engine=engine)) as searcher:
        instances = _Part("instance", bundle.instances.texts, searcher.instances)
        parts = [instances, _Part("label", bundle.labels.texts, searcher.labels)]
        for part in parts:
            if part.read is None:
                part.check(bundle, encoder)
        for part in parts:
            source = "read from the index" if part.read else "encoded again, because the index stores no exact keys"
            print_status(f"compact: keys of {len(part.texts):,} {part.name}s {source}")
        blocks = (block for part in parts for block in part.keys(encoder))
        keys = save_rows(folder / "keys.npy", (plan.keys, plan.dim), np.dtype(np.float32), blocks)
    values = bundle.instances.values
    return Memory(
        folder=folder,
        plan=plan,
        # The keys of labels are those of the bundle, which can be mixed with instances already.
        defaults={
            "lambda": options.lambda_,
            "temperature": options.temperature,
            "top_b": options.top_b,
            "label_key_alpha": 0.0,
        },
        keys=keys,
        value_indptr=values.indptr,
        value_indices=values.indices,
        filtered_pairs=no_pairs(),
    )


def _is_exact(index: Any) -> bool:
    """Whether an index stores its vectors in single precision, in the order of the rows."""
    vectors = index.storage if isinstance(index, faiss.IndexHNSW) else index
    return isinstance(faiss.downcast_index(vectors), faiss.IndexFlat)
