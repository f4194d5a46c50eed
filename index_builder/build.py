"""From a run to a published bundle: export, index, sign, check, publish, in that order.

All is written aside in the store and opened through the service's own code before it gets its name; whatever
fails on the way, the store is as it was.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import faiss
import numpy as np
import torch
from jaxtyping import Int
from tqdm import tqdm

from index_builder.errors import BuildError, CheckFailed
from index_builder.faiss_index import check_units
from index_builder.onnx_export import cosines, export_encoder
from index_builder.settings import BuildSettings
from index_builder.signing import read_signing_key, sign_manifest
from index_builder.tune import QUERIES, Target, build_best
from service.arrays import save_array
from service.bundle import describe_files, open_bundle
from service.encoder import QueryEncoder
from service.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    Counts,
    Defaults,
    EncoderInfo,
    FileInfo,
    Indexes,
    IndexInfo,
    Manifest,
    Point,
)
from service.predictor import Predictor
from service.settings import threads_or_cores
from service.store import Store
from service.strings import write_table
from trainer.checkpoint import encoder_digest, load_checkpoint
from trainer.encoder import Encoder
from trainer.memory import Memory, open_memory

# Texts of the memory on which encoder parity and index recall are measured.
_PARITY_TEXTS = 256
# Worst cosine to PyTorch's vectors below which an exported encoder is not published.
_WORST_COSINE = {"fp32": 0.9999, "int8": 0.9}
_DEFAULT_TOP_K = 10


def build(settings: BuildSettings) -> str:
    """Build a bundle from a run and publish it.

    Returns:
        The new version.

    Raises:
        BuildError: If the run's checkpoint and memory do not belong together, or a key is no unit vector.
        CheckFailed: If the exported encoder strays from PyTorch's, or an index misses too many keys.
        MemoryFolderError, EncoderError: If the run cannot be read.
        KeyFileError: If the signing key cannot be read.
    """
    signing_key = read_signing_key(settings.sign) if settings.sign else None
    threads = threads_or_cores(settings.threads)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    memory = open_memory(settings.run / "memory")
    encoder = load_checkpoint(settings.run / "checkpoint", "cpu")
    _check_match(settings.run, memory, encoder)
    store = Store(settings.store)
    with store.incoming() as folder:
        _write_tables(memory, folder)
        say(f"export: {encoder.config.name}, {settings.precision}")
        export_encoder(encoder, folder, settings.precision)
        encoder_info = EncoderInfo(
            name=encoder.config.name,
            pooling=encoder.config.pooling,
            precision=settings.precision,
            max_length=encoder.config.max_length,
            pad_id=encoder.pad_id,
        )
        metrics = _check_encoder(memory, encoder, QueryEncoder(folder, encoder_info, threads), settings.precision)
        indexes, curves = _write_indexes(memory, folder, settings, metrics)
        manifest = _write_manifest(memory, folder, encoder_info, indexes, metrics, curves)
        verify_key = sign_manifest(folder, signing_key) if signing_key else None
        say(f"verify: {sum(file.size for file in manifest.files.values()) / 1e6:,.0f} MB")
        Predictor.open(open_bundle(folder, verify_key), threads)
        store.publish(folder, manifest.version)
    if settings.activate:
        store.activate(manifest.version)
    return manifest.version


def say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201


def _check_match(run: Path, memory: Memory, encoder: Encoder) -> None:
    if memory.plan.dim != encoder.dim:
        raise BuildError(
            f"{run}: expected keys of {encoder.dim} dimensions, as the checkpoint makes, the memory has "
            f"{memory.plan.dim}; encode it again with `recollect train --overwrite`"
        )
    if memory.plan.encoder_sha256 != encoder_digest(encoder):
        raise BuildError(
            f"{run}: expected the memory's keys to come from this checkpoint, found another encoder's; "
            "encode it again with `recollect train --overwrite`"
        )


def _write_tables(memory: Memory, folder: Path) -> None:
    """Values, label counts, uids and texts, in the form that maps."""
    instances, labels = memory.plan.instances, memory.plan.labels
    save_array(folder / "value_indptr.npy", memory.value_indptr)
    save_array(folder / "value_indices.npy", memory.value_indices)
    save_array(folder / "label_counts.npy", np.bincount(memory.value_indices, minlength=labels).astype(np.int32))
    for part, rows in (("label", labels), ("instance", instances)):
        source = memory.folder / f"{part}s.jsonl"
        for field in ("uid", "text"):
            table = write_table(folder, f"{part}_{field}s", _field(source, field))
            if len(table) != rows:
                raise BuildError(f"{source}: expected {rows:,} lines, found {len(table):,}; train again")
            if (part, field) == ("label", "uid"):
                save_array(folder / "label_order.npy", table.sorted_rows())


def _field(path: Path, field: str) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield _string(json.loads(line)[field])
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path}: expected JSON lines with {field!r}, found: {error!r}; train again") from None


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} for a string")
    return value


def _check_encoder(memory: Memory, encoder: Encoder, exported: QueryEncoder, precision: str) -> dict[str, float]:
    """Compare the exported encoder with PyTorch on the memory's own texts, and PyTorch with the stored keys."""
    rows = _sample(memory.plan.instances, _PARITY_TEXTS)
    wanted = set(rows.tolist())
    texts = [text for row, text in enumerate(_field(memory.folder / "instances.jsonl", "text")) if row in wanted]
    reference = encoder.encode(texts, encoder.config.max_length)
    with np.errstate(invalid="ignore", divide="ignore"):  # a key of NaN or of zeros is no reason to warn, but to refuse
        stored = cosines(reference, np.asarray(memory.keys[rows], dtype=np.float32))
    worst = int(stored.argmin())  # the first NaN, if there is one
    if not stored[worst] >= _WORST_COSINE["fp32"]:
        raise BuildError(
            f"{memory.folder}/keys.npy: row {rows[worst]}: expected the key that the checkpoint makes of its text, "
            f"found a cosine of {stored[worst]:.4f} to it; encode it again with `recollect train --overwrite`"
        )
    parity = cosines(reference, exported.encode(exported.tokenise(texts)))
    if not parity.min() >= _WORST_COSINE[precision]:
        raise CheckFailed(
            f"encoder.onnx ({precision}): expected every cosine to PyTorch >= {_WORST_COSINE[precision]}, "
            f"found {parity.min():.6f}; not published"
        )
    return {
        "parity_texts": len(texts),
        "parity_mean_cosine": float(parity.mean()),
        "parity_worst_cosine": float(parity.min()),
    }


def _write_indexes(
    memory: Memory, folder: Path, settings: BuildSettings, metrics: dict[str, float]
) -> tuple[Indexes, dict[str, list[Point]]]:
    """Index label keys, then instance keys with what the budgets leave; their recall goes into `metrics`.

    Returns:
        The indexes, and all points that were measured of each.
    """
    instances, top_b = memory.plan.instances, int(memory.defaults["top_b"])
    queries = np.asarray(memory.keys[_sample(instances, QUERIES)], dtype=np.float32)
    if memory.defaults["label_key_alpha"]:
        check_units(memory.keys[instances:], instances)  # the mix would hide a damaged text key
    size_bytes, milliseconds = settings.memory_budget or np.inf, settings.latency_budget_ms or np.inf
    infos: dict[str, IndexInfo] = {}
    curves: dict[str, list[Point]] = {}
    for part, first_row, keys, share in (
        ("label", instances, memory.label_keys(), memory.plan.labels / memory.plan.keys),
        ("instance", 0, memory.instance_keys, 1.0),
    ):
        target = Target(settings.recall_target, top_b, size_bytes * share, milliseconds * (0.5 + share / 2))
        path = folder / f"{part}_keys.faiss"
        infos[part], point, curves[f"{part}s"] = build_best(
            keys, first_row, path, settings.index, queries, target, functools.partial(_bar, part)
        )
        metrics |= {f"recall_{part}s": point.recall, f"search_{part}s_ms": point.milliseconds}
        size_bytes, milliseconds = size_bytes - path.stat().st_size, milliseconds - point.milliseconds
    metrics["recall_at"] = top_b
    return Indexes(instances=infos["instance"], labels=infos["label"]), curves


@contextlib.contextmanager
def _bar(part: str, factory: str, keys: int) -> Iterator[Callable[[int], object]]:
    with tqdm(total=keys, unit="key", unit_scale=True, desc=f"index {part}s ({factory})") as bar:
        yield bar.update


def _write_manifest(
    memory: Memory,
    folder: Path,
    encoder: EncoderInfo,
    indexes: Indexes,
    metrics: dict[str, float],
    curves: dict[str, list[Point]],
) -> Manifest:
    answering = {name: value for name, value in memory.defaults.items() if name != "label_key_alpha"}
    files, now = describe_files(folder), datetime.now(UTC).replace(microsecond=0)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        version=f"{now:%Y%m%d-%H%M%S}-{_digest(files)[:6]}",
        created=now,
        counts=Counts(
            instances=memory.plan.instances,
            labels=memory.plan.labels,
            pairs=len(memory.value_indices),
        ),
        dim=memory.plan.dim,
        encoder=encoder,
        index=indexes,
        defaults=Defaults(**answering, top_k=_DEFAULT_TOP_K),
        metrics=metrics,
        curves=curves,
        files=files,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2, by_alias=True) + "\n", encoding="utf-8")
    return manifest


def _digest(files: dict[str, FileInfo]) -> str:
    return hashlib.sha256("".join(files[name].sha256 for name in sorted(files)).encode()).hexdigest()


def _sample(rows: int, wanted: int) -> Int[np.ndarray, " sample"]:
    """Rows spread evenly over all, so that short and long, early and late texts are among them."""
    return np.unique(np.linspace(0, rows - 1, num=min(rows, wanted), dtype=np.int64))
