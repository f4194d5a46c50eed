"""From a run to a published bundle: export the encoder, build the indexes, verify, publish.

The bundle is written to a temporary folder of the store and measured with the service's own code before it is
published. If a step fails, the store does not change.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

import faiss
import numpy as np
import torch

from recollect.core import extras
from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import MANIFEST
from recollect.core.bundle.integrity import describe_files
from recollect.core.bundle.manifest import (
    FORMAT_VERSION,
    Check,
    Counts,
    Defaults,
    EncoderInfo,
    Engine,
    FileInfo,
    Indexes,
    IndexInfo,
    Manifest,
    Order,
    Point,
    Probabilities,
)
from recollect.core.bundle.signing import SigningKey, read_signing_key, sign_manifest
from recollect.core.golden import write_golden
from recollect.core.search.gpu import NoGpuError, gpu_resources
from recollect.core.settings import Device
from recollect.core.system.console import print_status, progress_bar
from recollect.core.system.threads import threads_or_cores
from recollect.edits.log import extent
from recollect.index_builder.bundle_tables import read_field, write_bundle_tables
from recollect.index_builder.choose_index import QUERIES, Queries, Target, build_chosen_index, evenly_spaced_rows
from recollect.index_builder.errors import BuildError, CheckFailed
from recollect.index_builder.faiss_index import KeysToIndex, check_factory, factory_string, is_graph
from recollect.index_builder.lexical import write_lexical
from recollect.index_builder.onnx_export import Sample, describe_encoder, export_encoder
from recollect.index_builder.reranker.artefact import choose_ranker, lexical_for, write_bundle_ranker
from recollect.index_builder.reranker.calibrate import fit_vote_probabilities
from recollect.index_builder.settings import BuildSettings, PublishSettings
from recollect.index_builder.verify import current_metrics, encode_sample, format_checks, golden_queries, verify
from recollect.store.store import Store
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.label_texts import describe_unclear_labels
from recollect.trainer.memory.memory import Memory, open_memory
from recollect.trainer.static.query_encoder import load_query_encoder

_DEFAULT_TOP_K = 10
# Least time limit of the calls of an engine in a build. They write, load and search more than the calls of a query.
ENGINE_SECONDS = 600.0
# Exact search of an index may take at most this long, unless no other index meets the requirements. A transformer takes
# milliseconds to encode a query, so a faster search would hardly shorten an answer. A static encoder takes 0.03 ms.
_EXACT_MILLISECONDS = {"transformer": 2.0, "static": 0.2}


def build(settings: BuildSettings) -> str:
    """Build a bundle from a run and publish it.

    Returns:
        The new version.

    Raises:
        BuildError: If the run's checkpoint and memory do not match, a key is not a unit vector, or faiss rejects the
            requested index.
        CheckFailed: If a check fails and `--force` is not set.
        MemoryFolderError, EncoderError, TrainingError: If the run cannot be read.
        StoreError, BundleError, DatasetError: If the current version or the gate dataset cannot be read.
        KeyFileError: If the signing key cannot be read.
    """
    signing_key = read_signing_key(settings.sign) if settings.sign else None
    patient = max(settings.engine_seconds, ENGINE_SECONDS)
    settings = settings.model_copy(update={"run": _local_run(settings.run), "engine_seconds": patient})
    threads = threads_or_cores(settings.threads)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    memory = open_memory(settings.run / "memory")
    encoder = load_checkpoint(settings.run / "checkpoint", "cpu")
    _check_match(settings.run, memory, encoder)
    query_encoder = load_query_encoder(settings.run, memory, encoder)
    choose_ranker(memory, settings)  # a wrong ranker fails here, before the work that takes minutes
    device = usable_device(settings)
    if settings.engine == "faiss" and settings.index != "auto":  # a wrong string fails here, before the long work
        factory = factory_string(settings.index, memory.plan.labels, settings.hnsw_m)
        if is_graph(factory) and not memory.is_normalised:
            raise BuildError(
                f"--index {settings.index}: expected unit vectors, because short vectors get no links in a graph of "
                f"inner products, found {settings.run}, trained with --no-normalise; use auto, flat or ivf"
            )
        check_factory(factory, memory.plan.dim)
    store = Store(settings.store, cache=settings.bundle_cache)
    before = current_metrics(store, settings, threads)
    if settings.gate_dataset and not before:
        print_status(f"gate: {store.name} has no current version to compare with; the gate is skipped")
    _check_memory_sequence(store, settings.memory_sequence)
    for line in describe_unclear_labels(encoder, read_field(memory.folder / "labels.jsonl", "text")):
        print_status(line)
    with (
        key_writer(None if settings.engine == "faiss" else settings.engine, settings) as writer,
        store.incoming() as folder,
    ):
        sample = encode_sample(memory, encoder, query_encoder)
        manifest, points = write_bundle(memory, query_encoder, sample, folder, settings, device, writer)
        print_status(f"verify: {manifest.size_bytes / 1e6:,.0f} MB")
        manifest = verify(folder, before, sample, points, settings, threads, device)
        require_passed(manifest.checks, settings.force)
        _check_memory_sequence(store, settings.memory_sequence)  # entries may have been removed during the build
        publish(store, folder, manifest, signing_key)
    if settings.activate:
        store.activate(manifest.version)
    return manifest.version


@runtime_checkable
class KeyWriter(Protocol):
    """Writes keys to an engine, such as Milvus. Use it as a context manager: an error removes what it has written."""

    def write(self, memory: Memory, version: str) -> tuple[Engine, Indexes, dict[str, Point], dict[str, list[Point]]]:
        """Write, measure and check the keys of a version; return the engine, and what `write_indexes` returns."""


def key_writer(engine: str | None, settings: PublishSettings) -> contextlib.AbstractContextManager[KeyWriter | None]:
    """The writer of an engine; None for keys in files."""
    if engine is None:
        return contextlib.nullcontext()
    writer: contextlib.AbstractContextManager[KeyWriter] = extras.load("key writer", engine).NewCollections(settings)
    return writer


def _local_run(run: Path) -> Path:
    """The folder of a run; a run at `hf://...` (a `Path` with one slash) is downloaded first."""
    if run.parts[:1] == ("hf:",):
        return Path(extras.load("runs", "hf").download(run))
    return run


def write_bundle(
    memory: Memory,
    encoder: Encoder,
    sample: Sample,
    folder: Path,
    settings: BuildSettings,
    device: Device,
    writer: KeyWriter | None = None,
) -> tuple[Manifest, dict[str, Point]]:
    """Write all files of a bundle. The caller verifies them afterwards.

    Args:
        memory: The memory of the bundle.
        encoder: The encoder of queries.
        sample: Texts and their vectors from this encoder, for the int8 export and the golden queries.
        folder: An existing folder.
        settings: Settings of the indexes and of the encoder's precision.
        device: Device that trains and fills indexes.
        writer: Writes the keys to an engine; None writes them to files of the bundle.

    Returns:
        The manifest, and the chosen measurement for the index of the labels and for the index of the instances.

    Raises:
        BuildError: If the memory's texts are damaged, a key is not a unit vector, or faiss or Milvus rejects the
            requested index.
        EngineError: If Milvus does not answer, or refuses a call.
    """
    write_bundle_tables(memory, folder)
    print_status(f"export: {encoder.config.name}, {settings.precision}")
    teacher = None if memory.distilled is None else memory.plan.encoder["name"]
    info = describe_encoder(encoder, settings.precision, teacher)
    export_encoder(encoder, folder, info, sample)
    write_golden(folder, golden_queries(memory, sample))
    ranker = choose_ranker(memory, settings)
    word_weight, measured = write_lexical(memory, folder, settings.run, lexical_for(ranker, settings.lexical))
    if ranker is None:
        probabilities = fit_vote_probabilities(memory, settings.run, folder, word_weight)
    else:
        probabilities = write_bundle_ranker(memory, folder, ranker)
    order: Order = "score" if ranker is None else "probability"
    options = {name: value for name, value in memory.defaults.items() if name != "label_key_alpha"}
    defaults = Defaults(**options, top_k=_DEFAULT_TOP_K, word_weight=word_weight, order=order)
    keys = write_keys(memory, folder, settings, device, info, writer)
    manifest = describe_bundle(memory, keys, info, defaults, probabilities, measured, settings.memory_sequence)
    write_manifest(folder, manifest)
    return manifest, keys.points


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2, by_alias=True) + "\n", encoding="utf-8")


def publish(store: Store, folder: Path, manifest: Manifest, signing_key: SigningKey | None) -> None:
    """Publish a checked bundle, signed if there is a key."""
    write_manifest(folder, manifest)
    if signing_key:
        open_bundle(folder, sign_manifest(folder, signing_key))
    store.publish(folder, manifest.version)


def usable_device(settings: PublishSettings) -> Device:
    """The device that builds the indexes: a GPU if one is requested and present, otherwise the CPU."""
    try:
        if settings.device != "cpu":
            gpu_resources()
            return "cuda"
    except NoGpuError as error:
        if settings.device == "cuda":
            print_status(f"--device cuda: expected a GPU, found none; building on the CPU: {error}")
    return "cpu"


def _check_memory_sequence(store: Store, sequence: int) -> None:
    """`--memory-sequence`: check that the log of a store has all entries after those that a bundle contains.

    Args:
        store: The store.
        sequence: Sequence number of the last entry that the bundle contains; 0 if it contains none.

    Raises:
        BuildError: If later entries were removed, or if the log has no such entry.
        MemoryLogError, StoreError, OSError: If the log cannot be read.
    """
    removed, last = extent(store)
    if sequence < removed:
        raise BuildError(
            f"--memory-sequence: expected at least {removed}, because `recollect prune --memory-log` has removed the "
            f"entries up to it from {store.name}, found {sequence}; train with a new `recollect export` of the store, "
            "and give the number that it prints"
        )
    if sequence > last:
        raise BuildError(
            f"--memory-sequence: expected at most {last}, the last live entry of {store.name}, found {sequence}; give "
            "the number that `recollect export` prints"
        )


def _check_match(run: Path, memory: Memory, encoder: Encoder) -> None:
    if memory.plan.dim != encoder.dim:
        raise BuildError(
            f"{run}: expected keys of {encoder.dim} dimensions, as in the checkpoint, found {memory.plan.dim} in the "
            f"memory; encode the memory again with `recollect train --overwrite`"
        )
    if memory.plan.encoder_sha256 != encoder_digest(encoder):
        raise BuildError(
            f"{run}: expected a memory that this checkpoint encoded, found another encoder's keys; "
            "encode the memory again with `recollect train --overwrite`"
        )


@dataclass(frozen=True)
class WrittenKeys:
    """The keys of a new version, in the indexes of its bundle or in an engine.

    Attributes:
        version: Name of the version.
        files: The files of the bundle.
        engine: The engine of the keys; None if they are in files.
        indexes: The indexes.
        points: The chosen measurement of each index, by `labels` and `instances`.
        curves: All measurements.
    """

    version: str
    files: dict[str, FileInfo]
    engine: Engine | None
    indexes: Indexes
    points: dict[str, Point]
    curves: dict[str, list[Point]]


def write_keys(
    memory: Memory,
    folder: Path,
    settings: PublishSettings,
    device: Device,
    encoder: EncoderInfo,
    writer: KeyWriter | None,
) -> WrittenKeys:
    """Write the keys of a bundle whose other files are complete; with a writer, to an engine."""
    if writer is None:
        indexes = write_indexes(memory, folder, settings, device, encoder)
        files = describe_files(folder)
        return WrittenKeys(new_version(files), files, None, *indexes)
    files = describe_files(folder, with_engine=True)
    version = new_version(files)
    return WrittenKeys(version, files, *writer.write(memory, version))


def write_indexes(
    memory: Memory, folder: Path, settings: PublishSettings, device: Device, encoder: EncoderInfo
) -> tuple[Indexes, dict[str, Point], dict[str, list[Point]]]:
    """Build the index of the label keys, then the index of the instance keys.

    The index of the instance keys may use the part of the memory and time budgets that the first index left unused.

    Returns:
        The manifest entries, the chosen measurement of each index, and all measurements.
    """
    instances, top_b = memory.plan.instances, int(memory.defaults["top_b"])
    rows = evenly_spaced_rows(instances, QUERIES)
    queries = Queries(memory.queries(rows), rows)
    if memory.defaults["label_key_alpha"]:
        # An enriched label key is normalised again, so a damaged key of a label's text would go unnoticed.
        for _ in KeysToIndex(memory.keys[instances:], instances).blocks():
            pass
    size_bytes, milliseconds = settings.memory_budget or np.inf, settings.latency_budget_ms or np.inf
    infos: dict[str, IndexInfo] = {}
    points: dict[str, Point] = {}
    curves: dict[str, list[Point]] = {}
    for part, first_row, keys, share in (
        ("labels", instances, memory.label_keys(), memory.plan.labels / memory.plan.keys),
        ("instances", 0, memory.instance_keys, 1.0),
    ):
        most_milliseconds = milliseconds * (1 + share) / 2
        target = Target(
            settings.recall_target,
            top_b,
            size_bytes * share,
            most_milliseconds,
            _EXACT_MILLISECONDS[encoder.kind],
            settings.hnsw_ef_search,
        )
        kind = factory_string(settings.index, len(keys), settings.hnsw_m)
        path = folder / f"{part[:-1]}_keys.faiss"
        bar = functools.partial(_progress_bar, part)
        infos[part], points[part], curves[part] = build_chosen_index(
            KeysToIndex(keys, first_row, memory.is_normalised),
            path,
            kind,
            queries if part == "instances" else Queries(queries.vectors),
            target,
            bar,
            device,
            settings.hnsw_ef_construction,
        )
        size_bytes, milliseconds = size_bytes - path.stat().st_size, milliseconds - points[part].milliseconds
    return Indexes(instances=infos["instances"], labels=infos["labels"]), points, curves


@contextlib.contextmanager
def _progress_bar(part: str, factory: str, keys: int) -> Iterator[Callable[[int], object]]:
    with progress_bar(keys, "key", f"index {part} ({factory})") as bar:
        yield bar.update


def new_version(files: dict[str, FileInfo]) -> str:
    """The name of a new version: the time, and a digest of the files."""
    digest = hashlib.sha256("".join(files[name].sha256 for name in sorted(files)).encode()).hexdigest()
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{digest[:6]}"


def describe_bundle(
    memory: Memory,
    keys: WrittenKeys,
    encoder: EncoderInfo,
    defaults: Defaults,
    probabilities: Probabilities | None,
    metrics: dict[str, float],
    memory_sequence: int = 0,
) -> Manifest:
    """The manifest of a bundle whose files are written."""
    return Manifest(
        format_version=FORMAT_VERSION,
        version=keys.version,
        created=datetime.now(UTC).replace(microsecond=0),
        counts=Counts(
            instances=memory.plan.instances,
            labels=memory.plan.labels,
            pairs=len(memory.value_indices),
        ),
        dim=memory.plan.dim,
        encoder=encoder,
        index=keys.indexes,
        engine=keys.engine,
        defaults=defaults,
        probabilities=probabilities,
        metrics=metrics,
        curves=keys.curves,
        memory_sequence=memory_sequence,
        files=keys.files,
    )


def require_passed(checks: list[Check], force: bool) -> None:
    """Print the checks.

    Raises:
        CheckFailed: If a check failed and `force` is false.
    """
    for line in format_checks(checks):
        print_status(line)
    failed = [each.name for each in checks if not each.passed]
    if failed and not force:
        raise CheckFailed(
            f"expected every check to pass, {len(failed)} failed: {', '.join(failed)}; the bundle is not published; "
            "fix the cause, or publish anyway with --force"
        )
