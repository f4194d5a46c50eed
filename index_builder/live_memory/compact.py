"""`recollect compact`: the memory of the current version and all live entries become the memory of a new version.

Nothing is fitted again: encoder, ranker, probabilities and default options are those of the current version. The keys
come from the run of this version, or from its bundle (`bundle_memory`). Entries that a bundle cannot contain, and
entries that are written meanwhile, stay live.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.files import CROSS_FILES, RANKER
from recollect.core.bundle.manifest import Manifest
from recollect.core.encoder import TextEncoder
from recollect.core.errors import ActivationConflictError
from recollect.core.golden import write_golden
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.settings import EngineSettings
from recollect.core.system.console import print_status
from recollect.core.system.threads import threads_or_cores
from recollect.core.tables.snapshot import Snapshot
from recollect.core.words.index import write_lexical_index
from recollect.edits.log import MemoryLog
from recollect.edits.writer import follow
from recollect.index_builder.bundle_tables import read_field, write_bundle_tables
from recollect.index_builder.choose_index import evenly_spaced_rows
from recollect.index_builder.draft import Draft, draft, signing_key_of
from recollect.index_builder.errors import BuildError
from recollect.index_builder.left_out_votes import texts_of
from recollect.index_builder.live_memory.bundle_memory import read_bundle_memory
from recollect.index_builder.live_memory.merged_memory import contained_instances, kept_entries, write_merged_memory
from recollect.index_builder.onnx_export import WORST_COSINE, Sample, cosines
from recollect.index_builder.settings import CompactSettings
from recollect.index_builder.verify import golden_queries
from recollect.store.activations import ActivationRecord
from recollect.store.store import Store
from recollect.trainer.memory.memory import Memory, open_memory

_SAMPLE_TEXTS = 256


def compact(settings: CompactSettings) -> str | None:
    """Publish a bundle with the memory of the current version and all live entries, and return the new version.

    Without live entries, nothing is published, and the result is None.

    Raises:
        BuildError: If the run is not that of the current version, `--out` exists, or the live entries leave no instance
            or no label. If there is no run, and the bundle cannot give its keys. If another version was activated
            meanwhile.
        CheckFailed: If a check fails and `--force` is not set.
        MemoryFolderError: If the run's memory cannot be read.
        StoreError, BundleError, KeyFileError: If the store, the current version or a key cannot be read.
    """
    signing_key = signing_key_of(settings)
    if settings.out and settings.out.exists():
        raise BuildError(f"--out: expected a folder that does not exist, found {settings.out}; choose another --out")
    store = Store(settings.store, settings.verify_key, settings.bundle_cache)
    current, record = store.require_current(), store.activation()
    bundle = store.open(current)
    old = bundle.manifest
    encoder = TextEncoder.of(
        bundle, threads=1, parallel=threads_or_cores(settings.threads), connections=settings.patient()
    )
    live = follow(MemoryLog.of(store, old, encoder.encode_texts), bundle)
    memory = live.catch_up()
    if memory.sequence == old.memory_sequence:
        print_status(f"{store.name}: nothing to compact: there are no live entries after version {current}")
        return None
    kept = len(kept_entries(memory))
    if kept:
        live.log.require_writable()  # a log that lacks entries fails here, before the work that takes minutes
    _describe(store, old, memory, kept)
    with (
        tempfile.TemporaryDirectory() as temporary,
        _removed_on_error(settings.out or Path(temporary) / "merged") as out,
        draft(store, settings, None if old.engine is None else old.engine.name, signing_key) as new,
    ):
        base = _base_memory(settings.run, bundle, encoder, Path(temporary), new.settings)
        merged = write_merged_memory(base, memory, out / "memory")
        sample = _sample(merged)
        _write_bundle(new, bundle, merged, sample, memory)
        new.check(sample)
        # The entries that a bundle cannot contain are appended again, so that they follow those that the bundle
        # contains. Their present state is written, so that they cannot undo a change that was written meanwhile. A
        # compaction that fails does not change the log.
        live.write(kept_entries)
    version = new.manifest.version
    if settings.activate and record is not None:
        _activate(store, version, record)
    return version


@contextlib.contextmanager
def _removed_on_error(folder: Path) -> Iterator[Path]:
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _activate(store: Store, version: str, before: ActivationRecord) -> None:
    """Make a new version current, if no other version became current since a record."""
    try:
        store.activate(version, why="compaction", expected_generation=before.generation)
    except ActivationConflictError:
        raise BuildError(
            f"{store.name}: version {version} is published and not activated, because of another activation during the "
            "compaction; see `recollect log`. If that version is to stay current, compact again"
        ) from None


def _describe(store: Store, old: Manifest, memory: Snapshot, kept: int) -> None:
    """Tell the user what a memory changes in a version, and how many of its entries stay live."""
    instances, labels = contained_instances(memory), memory.labels.present()
    if not len(instances) or not labels.any():
        raise BuildError(
            f"{store.name}: expected live entries that leave an instance and a label, found none left; a bundle needs "
            "both, so add some first"
        )
    counts = old.counts
    left_instances = np.count_nonzero(instances < counts.instances)
    left_labels = np.count_nonzero(labels[: counts.labels])
    print_status(
        f"compact: entries up to {memory.sequence:,}: {len(instances) - left_instances:,} instances and "
        f"{np.count_nonzero(labels) - left_labels:,} labels added, {counts.instances - left_instances:,} and "
        f"{counts.labels - left_labels:,} removed; {kept:,} entries stay live"
    )


def _base_memory(
    run: Path | None, bundle: Bundle, encoder: TextEncoder, folder: Path, engine: EngineSettings
) -> Memory:
    """The memory of the current version, from its run or from its bundle, whose keys are written into a folder."""
    if run is None:
        return read_bundle_memory(bundle, encoder, folder, engine)
    memory = open_memory(run / "memory")
    _check_run(memory, encoder, bundle, run)
    return memory


def _check_run(memory: Memory, encoder: TextEncoder, bundle: Bundle, run: Path) -> None:
    """Check that a run has the instances and labels of a bundle, row by row, and keys of its encoder."""
    version = bundle.manifest.version
    for name, uids in (("instances", bundle.instances.uids), ("labels", bundle.labels.uids)):
        rows = list(read_field(memory.folder / f"{name}.jsonl", "uid"))
        if len(rows) != len(uids) or any(uids[row] != uid for row, uid in enumerate(rows)):
            raise BuildError(
                f"--run: expected the {name} of version {version}, found others in {run}; name the run from which the "
                "version was built, or --out of the compaction that built it"
            )
    sample = _sample(memory)
    cosine = cosines(sample.vectors, encoder.encode_texts(sample.texts)).min()
    if not cosine >= WORST_COSINE[bundle.manifest.encoder.precision]:
        raise BuildError(
            f"--run: expected keys of the encoder of version {version}, found keys of another one in {run} (cosine "
            f"{cosine:.4f}); name the run from which the version was built"
        )


def _sample(memory: Memory) -> Sample:
    """Texts of instances, and their vectors as queries."""
    rows = evenly_spaced_rows(memory.plan.instances, _SAMPLE_TEXTS)
    return Sample(texts_of(memory, rows), memory.queries(rows))


def _write_bundle(new: Draft, bundle: Bundle, memory: Memory, sample: Sample, live: Snapshot) -> None:
    old, folder = bundle.manifest, new.folder
    write_bundle_tables(memory, folder)
    copied = [*old.encoder_files, *([RANKER] if old.has_ranker else []), *(CROSS_FILES & old.files.keys())]
    for name in copied:
        shutil.copyfile(bundle.folder / name, folder / name)
    write_golden(folder, golden_queries(memory, sample))
    if old.has_ranker:
        facts, labels = LabelFacts.open(bundle), np.flatnonzero(live.labels.present())
        labels[labels >= len(bundle.labels)] = -1  # labels that were added
        facts.take(labels, read_field(memory.folder / "labels.jsonl", "text")).write(folder)
    if old.has_lexical_index:
        write_lexical_index(
            folder, *(read_field(memory.folder / f"{part}s.jsonl", "text") for part in ("instance", "label"))
        )
    new.complete(memory, old.encoder, old.defaults, old.probabilities, live.sequence, {}, dict(old.dataset))
