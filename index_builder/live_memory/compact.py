"""`recollect compact`: the memory of the current version and all live entries become the memory of a new version.

Nothing is fitted again: encoder, ranker, probabilities and default options are those of the current version. The keys
come from the run of this version, or from its bundle (`bundle_memory`). Entries that a bundle cannot contain, and
entries that are written meanwhile, stay live.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from recollect.index_builder.build import (
    describe_bundle,
    publish,
    require_passed,
    usable_device,
    write_keys,
    write_manifest,
)
from recollect.index_builder.bundle_tables import read_field, write_bundle_tables
from recollect.index_builder.choose_index import evenly_spaced_rows
from recollect.index_builder.errors import BuildError
from recollect.index_builder.left_out_votes import texts_of
from recollect.index_builder.live_memory.bundle_memory import BundleMemory
from recollect.index_builder.live_memory.merged_memory import contained_instances, kept_entries, write_merged_memory
from recollect.index_builder.milvus_index import BUILD_SECONDS, NewCollections
from recollect.index_builder.onnx_export import WORST_COSINE, Sample, cosines
from recollect.index_builder.settings import CompactSettings
from recollect.index_builder.verify import current_metrics, golden_queries, verify
from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.files import RANKER
from recollect.service.bundle.signing import SigningKey, read_signing_key
from recollect.service.console import print_status
from recollect.service.errors import ActivationConflictError
from recollect.service.lexical.index import write_lexical_index
from recollect.service.memory.snapshot import Snapshot
from recollect.service.memory_log.log import MemoryLog
from recollect.service.memory_log.writer import MemoryWriter, follow
from recollect.service.predictor.encoder import QueryEncoder
from recollect.service.predictor.golden import write_golden
from recollect.service.ranking.names import Names
from recollect.service.store.activations import ActivationRecord
from recollect.service.store.store import Store
from recollect.service.threads import threads_or_cores
from recollect.trainer.memory.memory import Memory, open_memory

_SAMPLE_TEXTS = 256


def compact(settings: CompactSettings) -> str | None:
    """Publish a bundle with the memory of the current version and all live entries.

    Returns:
        The new version; None if there are no live entries, so that nothing is published.

    Raises:
        BuildError: If the run is not that of the current version, `--out` exists, or the live entries leave no instance
            or no label. If there is no run, and the bundle cannot give its keys. If another version was activated
            meanwhile.
        CheckFailed: If a check fails and `--force` is not set.
        MemoryFolderError: If the run's memory cannot be read.
        StoreError, BundleError, KeyFileError: If the store, the current version or a key cannot be read.
    """
    signing = read_signing_key(settings.sign) if settings.sign else None
    settings = settings.model_copy(update={"engine_seconds": max(settings.engine_seconds, BUILD_SECONDS)})
    threads = threads_or_cores(settings.threads)
    faiss.omp_set_num_threads(threads)
    if settings.out and settings.out.exists():
        raise BuildError(f"--out: expected a folder that does not exist, found {settings.out}; choose another --out")
    store = Store(settings.store, settings.verify_key, settings.bundle_cache)
    current = store.require_current()
    record = store.activation()
    version = _compact(store, current, settings, signing, threads)
    if version is not None and settings.activate and record is not None:
        _activate(store, version, record)
    return version


def _activate(store: Store, version: str, before: ActivationRecord) -> None:
    """Make a new version current, if no other version became current since a record."""
    try:
        store.activate(version, why="compaction", expected_generation=before.generation)
    except ActivationConflictError:
        raise BuildError(
            f"{store.name}: version {version} is published and not activated, because of another activation during the "
            "compaction; see `recollect log`. If that version is to stay current, compact again"
        ) from None


def _compact(
    store: Store, current: str, settings: CompactSettings, signing: SigningKey | None, threads: int
) -> str | None:
    """Publish a bundle with the current version's memory and all live entries.

    Return its version; None if there are no live entries.
    """
    bundle = store.open(current)
    collections = None if bundle.manifest.engine is None else NewCollections(settings)
    encoder = QueryEncoder.of(bundle, threads=1, parallel=threads)
    with tempfile.TemporaryDirectory() as temporary, collections or contextlib.nullcontext():
        open_base = _find_base(settings.run, bundle, encoder, Path(temporary), collections)
        log = MemoryLog.of(store, bundle.manifest, encoder.encode_texts)
        live = follow(log, bundle)
        memory, sequence = live.catch_up(), log.sequence
        if sequence == bundle.manifest.memory_sequence:
            print_status(f"{store.name}: nothing to compact: there are no live entries after version {current}")
            return None
        kept, instances, labels = kept_entries(memory), contained_instances(memory), memory.labels.present()
        if not len(instances) or not labels.any():
            raise BuildError(
                f"{store.name}: expected live entries that leave an instance and a label, found none left; a bundle "
                "needs both, so add some first"
            )
        if kept:
            log.require_writable()  # a missing key fails here, before the work that takes minutes
        old = bundle.manifest.counts
        old_instances, old_labels = np.count_nonzero(instances < old.instances), np.count_nonzero(labels[: old.labels])
        print_status(
            f"compact: entries up to {sequence:,}: {len(instances) - old_instances:,} instances and "
            f"{np.count_nonzero(labels) - old_labels:,} labels added, {old.instances - old_instances:,} and "
            f"{old.labels - old_labels:,} removed; {len(kept):,} entries stay live"
        )
        before = current_metrics(store, settings, threads)
        out = settings.out or Path(temporary) / "merged"
        try:
            base = open_base()
            merged = write_merged_memory(base, memory, out / "memory")
            sample = _sample(base)
            return _publish(
                store, bundle, merged, sample, sequence, before, settings, signing, threads, live, collections
            )
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise


def _find_base(
    run: Path | None, bundle: Bundle, encoder: QueryEncoder, folder: Path, collections: NewCollections | None
) -> Callable[[], Memory]:
    """Find the memory of the current version, and return a function that opens it.

    Without a run, this function checks that the bundle can give its keys. The returned function writes them into the
    folder, which takes longer.
    """
    if run is None:
        milvus = None if collections is None else collections.connection
        return functools.partial(BundleMemory(bundle, encoder, milvus).write, folder / "base")
    memory = open_memory(run / "memory")
    _check_run(memory, bundle, run)
    _check_encoder(encoder, _sample(memory), bundle, run)
    return lambda: memory


def _check_run(memory: Memory, bundle: Bundle, run: Path) -> None:
    """Check that a bundle has the instances and labels of a run, row by row."""
    for name, uids in (("instances", bundle.instances.uids), ("labels", bundle.labels.uids)):
        rows = list(read_field(memory.folder / f"{name}.jsonl", "uid"))
        if len(rows) != len(uids) or any(uids[row] != uid for row, uid in enumerate(rows)):
            raise BuildError(
                f"--run: expected the {name} of version {bundle.manifest.version}, found others in {run}; name the run "
                "from which the version was built, or --out of the compaction that built it"
            )


def _sample(memory: Memory) -> Sample:
    """Texts of instances, and their vectors as queries."""
    rows = evenly_spaced_rows(memory.plan.instances, _SAMPLE_TEXTS)
    return Sample(texts_of(memory, rows), memory.queries(rows))


def _check_encoder(encoder: QueryEncoder, sample: Sample, bundle: Bundle, run: Path) -> None:
    found, least = cosines(sample.vectors, encoder.encode_texts(sample.texts)), WORST_COSINE
    if not found.min() >= least[bundle.manifest.encoder.precision]:
        raise BuildError(
            f"--run: expected keys of the encoder of version {bundle.manifest.version}, found keys of another one in "
            f"{run} (cosine {found.min():.4f}); name the run from which the version was built"
        )


def _publish(
    store: Store,
    bundle: Bundle,
    memory: Memory,
    sample: Sample,
    sequence: int,
    before: dict[str, float],
    settings: CompactSettings,
    signing: SigningKey | None,
    threads: int,
    live: MemoryWriter[Snapshot],
    collections: NewCollections | None,
) -> str:
    """Write, check and publish the bundle of a merged memory; return its version.

    Just before the publication, the entries that a bundle cannot contain are appended to the log again, so that they
    follow those that the bundle contains. Their present state is written, so that they cannot undo a change that was
    written meanwhile. A compaction that fails does not change the log.
    """
    device, old = usable_device(settings), bundle.manifest
    with store.incoming() as folder:
        write_bundle_tables(memory, folder)
        for name in ("encoder.onnx", "tokenizer.json", *([RANKER] if old.has_ranker else [])):
            shutil.copyfile(bundle.folder / name, folder / name)
        write_golden(folder, golden_queries(memory, sample))
        if old.has_ranker:
            Names.of(read_field(memory.folder / "labels.jsonl", "text")).write(folder)
        if old.has_lexical_index:
            write_lexical_index(
                folder, *(read_field(memory.folder / f"{part}s.jsonl", "text") for part in ("instance", "label"))
            )
        keys = write_keys(memory, folder, settings, device, old.encoder, collections)
        manifest = describe_bundle(memory, keys, old.encoder, old.defaults, old.probabilities, {}, sequence)
        write_manifest(folder, manifest)
        manifest = verify(folder, before, sample, keys.points, settings, threads, device)
        require_passed(manifest.checks, settings.force)
        live.write(kept_entries)
        publish(store, folder, manifest, signing)
    return manifest.version
