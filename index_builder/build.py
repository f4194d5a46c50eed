"""From a run to a published bundle: export the encoder, write words, ranker and keys, check, publish."""

from __future__ import annotations

from pathlib import Path

from recollect.core import extras
from recollect.core.bundle.files import CROSS_RANKER
from recollect.core.bundle.manifest import Defaults
from recollect.core.golden import write_golden
from recollect.core.system.console import print_status
from recollect.edits.log import extent
from recollect.index_builder.bundle_tables import read_field, write_bundle_tables
from recollect.index_builder.draft import Draft, draft, signing_key_of
from recollect.index_builder.errors import BuildError
from recollect.index_builder.faiss_index import check_factory, factory_string, is_graph
from recollect.index_builder.lexical import write_lexical
from recollect.index_builder.onnx_export import Sample, describe_encoder, export_encoder
from recollect.index_builder.reranker.artefact import choose_ranker, has_cross_encoder, lexical_for, write_bundle_ranker
from recollect.index_builder.reranker.vote_probabilities import fit_vote_probabilities
from recollect.index_builder.settings import BuildSettings
from recollect.index_builder.verify import encode_sample, golden_queries
from recollect.store.store import Store
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.label_texts import describe_unclear_labels
from recollect.trainer.memory.memory import Memory, open_memory, read_dataset_flags
from recollect.trainer.static.query_encoder import load_query_encoder

_DEFAULT_TOP_K = 10


def build(settings: BuildSettings) -> str:
    """Build a bundle from a run and publish it. Return the new version.

    Raises:
        BuildError: If the run's checkpoint and memory do not match, a key is not a unit vector, or faiss rejects the
            requested index.
        CheckFailed: If a check fails and `--force` is not set.
        MemoryFolderError, EncoderError, TrainingError: If the run cannot be read.
        StoreError, BundleError, DatasetError: If the current version or the gate dataset cannot be read.
        KeyFileError: If the signing key cannot be read.
    """
    signing_key = signing_key_of(settings)
    settings = settings.model_copy(update={"run": _local_run(settings.run)})
    memory = open_memory(settings.run / "memory")
    encoder = load_checkpoint(settings.run / "checkpoint", "cpu", settings)
    _check_match(settings.run, memory, encoder)
    query_encoder = load_query_encoder(settings.run, memory, encoder)
    ranker = choose_ranker(memory, settings)  # a wrong ranker fails here, before the work that takes minutes
    if settings.rerank and (ranker is None or not has_cross_encoder(memory)):
        raise BuildError(
            f"--rerank: expected a run with a cross-encoder, found none in {settings.run}; run `recollect rank "
            "--cross-encoder`, or leave out --rerank"
        )
    if settings.engine == "faiss" and settings.index != "auto":  # as does a wrong string
        _check_index(memory, settings)
    store = Store(settings.store, cache=settings.bundle_cache)
    _check_memory_sequence(store, settings.memory_sequence)
    for line in describe_unclear_labels(encoder, read_field(memory.folder / "labels.jsonl", "text")):
        print_status(line)
    with draft(store, settings, None if settings.engine == "faiss" else settings.engine, signing_key) as new:
        sample = encode_sample(memory, encoder, query_encoder)
        write_bundle(memory, query_encoder, sample, new, settings)
        print_status(f"verify: {new.manifest.size_bytes / 1e6:,.0f} MB")
        new.check(sample)
        _check_memory_sequence(store, settings.memory_sequence)  # entries may have been removed during the build
    version = new.manifest.version
    if settings.activate:
        store.activate(version)
    else:
        print_status(f"published, but not served: recollect activate {version} --store {settings.store}")
    return version


def _local_run(run: Path) -> Path:
    """The folder of a run; a run at `hf://...` (a `Path` with one slash) is downloaded first."""
    if run.parts[:1] == ("hf:",):
        return Path(extras.load("runs", "hf").download(run))
    return run


def write_bundle(memory: Memory, encoder: Encoder, sample: Sample, new: Draft, settings: BuildSettings) -> None:
    """Write all files of a bundle. The caller checks them afterwards.

    The sample has texts and their vectors from this encoder, for the int8 export and the golden queries.
    """
    folder = new.folder
    write_bundle_tables(memory, folder)
    print_status(f"export: {encoder.config.name}, {settings.precision}")
    teacher = None if memory.distilled is None else memory.plan.encoder["name"]
    info = describe_encoder(encoder, settings.precision, teacher)
    export_encoder(encoder, folder, info, sample)
    write_golden(folder, golden_queries(memory, sample))
    ranker = choose_ranker(memory, settings)
    word_weight, measured = write_lexical(memory, folder, settings.run, lexical_for(ranker, settings.lexical))
    if ranker is None:
        probabilities, choice = fit_vote_probabilities(memory, settings.run, folder, word_weight)
    else:
        probabilities, choice = write_bundle_ranker(memory, folder, ranker)
    options = {name: value for name, value in memory.defaults.items() if name != "label_key_alpha"}
    rerank = settings.rerank and (folder / CROSS_RANKER).is_file()
    if rerank and choice.order == "score":
        print_status("--rerank: the default order is probability, because the order score needs no cross-encoder")
        choice = choice._replace(order="probability")
    defaults = Defaults(**options, top_k=_DEFAULT_TOP_K, word_weight=word_weight, **choice._asdict(), rerank=rerank)
    read = read_dataset_flags(memory.folder)
    new.complete(memory, info, defaults, probabilities, settings.memory_sequence, measured, read)


def _check_index(memory: Memory, settings: BuildSettings) -> None:
    """Raise `BuildError` if faiss cannot build the requested index over keys like those of a memory."""
    factory = factory_string(settings.index, memory.plan.labels, settings.hnsw_m)
    if is_graph(factory) and not memory.is_normalised:
        raise BuildError(
            f"--index {settings.index}: expected unit vectors, because short vectors get no links in a graph of "
            f"inner products, found {settings.run}, trained with --no-normalise; use auto, flat or ivf"
        )
    check_factory(factory, memory.plan.dim)


def _check_memory_sequence(store: Store, sequence: int) -> None:
    """Check that the log of a store has all entries after the last one of a bundle, `--memory-sequence`."""
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
