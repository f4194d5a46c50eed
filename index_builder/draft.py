"""A bundle that is not published yet: its folder is filled, checked, signed and published.

The folder lies in the store. The bundle is measured with the service's own code before it is published. If a step
fails, the store does not change.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import faiss
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
    Manifest,
    Point,
    Probabilities,
)
from recollect.core.bundle.signing import SigningKey, read_signing_key, sign_manifest
from recollect.core.search.gpu import NoGpuError, gpu_resources
from recollect.core.settings import Device
from recollect.core.system.console import print_status
from recollect.core.system.threads import threads_or_cores
from recollect.index_builder.errors import CheckFailed
from recollect.index_builder.indexes import write_indexes
from recollect.index_builder.onnx_export import Sample
from recollect.index_builder.settings import PublishSettings
from recollect.index_builder.verify import Gate, format_checks, measure_current, verify
from recollect.store.store import Store
from recollect.trainer.memory.memory import Memory


@runtime_checkable
class KeyWriter(Protocol):
    """Writes keys to an engine, such as Milvus. Use it as a context manager: an error removes what it has written."""

    def write(self, memory: Memory, version: str) -> tuple[Engine, Indexes, dict[str, Point], dict[str, list[Point]]]:
        """Write, measure and check the keys of a version; return the engine, and what `write_indexes` returns."""


@dataclass
class Draft:
    """A bundle that is not published yet. `complete` sets its manifest, and the chosen measurement of each index."""

    folder: Path
    settings: PublishSettings
    device: Device  # trains and fills indexes, and opens the bundle to check it
    writer: KeyWriter | None = None  # None writes the keys to files of the bundle
    before: Gate | None = None  # metrics of the current version; None without a gate
    manifest: Manifest = field(init=False)
    points: dict[str, Point] = field(init=False)

    def complete(
        self,
        memory: Memory,
        encoder: EncoderInfo,
        defaults: Defaults,
        probabilities: Probabilities | None,
        sequence: int,
        metrics: dict[str, float],
        dataset: dict[str, Any],
    ) -> None:
        """Write the keys and the manifest, after all other files. The memory has the live entries up to `sequence`.

        Raises:
            BuildError: If a key is not a unit vector, or faiss or the engine rejects the requested index.
            EngineError: If the engine does not answer, or refuses a call.
        """
        engine = None
        if self.writer is None:
            indexes, self.points, curves = write_indexes(memory, self.folder, self.settings, self.device, encoder)
            files = describe_files(self.folder)
            version = _new_version(files)
        else:
            files = describe_files(self.folder, with_engine=True)
            version = _new_version(files)
            engine, indexes, self.points, curves = self.writer.write(memory, version)
        plan = memory.plan
        self.manifest = Manifest(
            format_version=FORMAT_VERSION,
            version=version,
            created=datetime.now(UTC).replace(microsecond=0),
            counts=Counts(instances=plan.instances, labels=plan.labels, pairs=len(memory.value_indices)),
            dim=plan.dim,
            encoder=encoder,
            index=indexes,
            engine=engine,
            defaults=defaults,
            probabilities=probabilities,
            metrics=metrics,
            curves=curves,
            dataset=dataset,
            memory_sequence=sequence,
            files=files,
        )
        self._write_manifest()

    def check(self, sample: Sample) -> None:
        """Open the bundle as a replica does, measure it, and print the checks; a `CheckFailed` without `--force`."""
        threads = threads_or_cores(self.settings.threads)
        self.manifest = verify(self.folder, self.before, sample, self.points, self.settings, threads, self.device)
        require_passed(self.manifest.checks, self.settings.force)
        self._write_manifest()

    def _write_manifest(self) -> None:
        text = self.manifest.model_dump_json(indent=2, by_alias=True)
        (self.folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def signing_key_of(settings: PublishSettings) -> SigningKey | None:
    """The private key of `--sign`, which a verb reads before its other work."""
    return read_signing_key(settings.sign) if settings.sign else None


@contextlib.contextmanager
def draft(
    store: Store, settings: PublishSettings, engine: str | None, signing_key: SigningKey | None
) -> Iterator[Draft]:
    """Yield an empty draft, which the caller completes and checks; then publish it, signed if there is a key.

    Without an engine, the keys are in files of the bundle.

    Raises:
        StoreError, BundleError, DatasetError: If the current version or the gate dataset cannot be read.
    """
    settings = settings.patient()
    threads = threads_or_cores(settings.threads)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    before = measure_current(store, settings, threads)
    if settings.gate_dataset and before is None:
        print_status(f"gate: {store.name} has no current version to compare with; the gate is skipped")
    writing: contextlib.AbstractContextManager[KeyWriter | None] = contextlib.nullcontext()
    if engine is not None:
        writing = extras.load("key writer", engine).NewCollections(settings)
    with writing as writer, store.incoming() as folder:
        new = Draft(folder, settings, usable_device(settings), writer, before)
        yield new
        if signing_key:
            open_bundle(folder, sign_manifest(folder, signing_key))
        store.publish(folder, new.manifest.version)


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


def require_passed(checks: list[Check], force: bool) -> None:
    """Print the checks. Raise `CheckFailed` if one of them failed, unless `force` is set."""
    for line in format_checks(checks):
        print_status(line)
    failed = [check.name for check in checks if not check.passed]
    if failed and not force:
        raise CheckFailed(
            f"expected every check to pass, {len(failed)} failed: {', '.join(failed)}; the bundle is not published; "
            "fix the cause, or publish anyway with --force"
        )


def _new_version(files: dict[str, FileInfo]) -> str:
    """The name of a new version: the time, and a digest, so that two builds in one second differ."""
    now = datetime.now(UTC)
    content = now.isoformat(timespec="microseconds") + "".join(files[name].sha256 for name in sorted(files))
    return f"{now:%Y%m%d-%H%M%S}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"
