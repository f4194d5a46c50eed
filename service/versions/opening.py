"""Opening a version: check free memory and files, warm up, check the golden queries, and apply the live entries.

A version opens while another one answers requests. A throttle slows the opening down, so that it does not slow down the
answers. The throttle adapts to the measured load: the share of the computing threads that are busy. The opening calls
`pause` after each step. `pause` rests in proportion to the load and to the CPU time of the step, and then waits for a
moment at which a computing thread is idle.

A thread with low priority would not help. If the system suspends such a thread while it holds Python's global lock, all
other threads wait. On a busy machine, such a thread also takes several times as long to open a version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from recollect.core.bundle.manifest import Manifest
from recollect.core.errors import InsufficientMemoryError
from recollect.core.golden import check_golden
from recollect.core.search.searcher import Observer
from recollect.core.settings import ConnectionSettings, Device
from recollect.core.system.ram import free_bytes
from recollect.edits.live import LivePredictor
from recollect.edits.log import MemoryLog
from recollect.store.store import Store

log = structlog.get_logger(__name__)

# While all computing threads are busy, background work rests this number of seconds for each second of CPU time.
_REST_FACTOR = 4.0
# Shorter steps are counted together. Their pauses would cost more than the steps.
_SHORTEST_STEP_SECONDS = 0.001
# After its rest, background work waits at most this long for an idle thread, so that it also ends under full load.
_MAX_IDLE_WAIT_SECONDS, _POLL_SECONDS = 0.02, 0.002
# During a rest, the work checks this often whether it is still needed.
_CHECK_SECONDS = 0.1
# Private memory of an open bundle: multiples of the sizes of two files, and a constant. All other files are mapped into
# memory, and the kernel can drop mapped pages when memory is short.
_ENCODER_FACTOR, _TOKENIZER_FACTOR, _CONSTANT_BYTES = 3.0, 8.0, 64 << 20


class CancelledWorkError(Exception):
    """Raised when the background work is no longer needed."""


class Throttle:
    """Slows down the background work of one thread while other threads compute answers.

    Create the throttle in the thread of the background work.
    """

    def __init__(self, load: Callable[[], float], check: Callable[[], None]) -> None:
        self._load, self._check = load, check
        self._step_start = time.thread_time()

    def pause(self) -> None:
        """End a step of the work. Raises CancelledWorkError if the work is no longer needed."""
        step_seconds = time.thread_time() - self._step_start
        self._check()
        if step_seconds < _SHORTEST_STEP_SECONDS:
            return
        until = time.monotonic() + _REST_FACTOR * self._load() * step_seconds
        while (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, _CHECK_SECONDS))
            self._check()
        for _ in range(round(_MAX_IDLE_WAIT_SECONDS / _POLL_SECONDS)):
            if self._load() < 1:
                break
            time.sleep(_POLL_SECONDS)
        self._step_start = time.thread_time()


@dataclass(frozen=True)
class Opener:
    """Opens the versions of one store for serving."""

    store: Store
    threads: int  # of the encoder and of each search
    device: Device = "cpu"
    workers: int = 1  # processes; during a swap, all of them open the next version at the same time
    # The connections to Milvus and to a server of vectors; None means those of the environment variables.
    connections: ConnectionSettings | None = None
    observer: Observer | None = None  # gets the calls of Milvus
    reads_live_entries: bool = True

    def open(
        self, version: str, throttle: Throttle | None = None, share_with: Sequence[LivePredictor] = ()
    ) -> LivePredictor:
        """Open a version and check that it may be served.

        Args:
            throttle: Slows the opening down while another version answers requests; None at the start of a process.
            share_with: Open predictors of other versions. The new version shares their equal files instead of opening
                them again. The predictors must stay open during the call; later, each may be closed.

        Raises:
            StoreError: If the store does not contain the version.
            InsufficientMemoryError: If too little memory is free.
            BundleError: If the bundle is damaged, or is not signed by the key that the store requires.
            WrongAnswersError: If the answers to the golden queries contain too few of the expected labels.
            EngineError, EncoderDownError, SettingsError: If the keys are in Milvus, or the vectors come from a server,
                and it does not answer or is not given.
            MemoryLogError: If the log of the live memory cannot be read.
            CancelledWorkError: If the throttle is cancelled.
        """
        pause = throttle.pause if throttle else None
        open_manifests = [predictor.manifest for predictor in share_with]
        require_memory(self.store.manifest(version), self.workers if throttle else 1, open_manifests)
        bundle = self.store.open(version, pause, [predictor.bundle for predictor in share_with])
        predictor = LivePredictor.open(bundle, self.threads, self.device, pause, self.connections)
        if predictor.engine is not None:
            predictor.engine.observer = self.observer
        try:
            check_golden(predictor, pause)
            if self.reads_live_entries:
                predictor.follow(MemoryLog.of(self.store, predictor.manifest, predictor.encode))
        except BaseException:
            predictor.close()
            raise
        for reason in predictor.cpu_reasons if self.device == "cuda" else []:
            log.warning("on_cpu", version=version, why=reason)
        return predictor


def require_memory(manifest: Manifest, processes: int = 1, share_with: Sequence[Manifest] = ()) -> None:
    """Refuse to open a version for which too little memory is free.

    During a swap, two versions are open at the same time. Without this check, a next version that is too large could
    make the kernel kill the process that serves the current version.

    `processes` open the version at the same time. The versions of `share_with` are open and share their equal files.

    Raises:
        InsufficientMemoryError: If less is free than the processes need.
    """
    needed, free = processes * private_bytes(manifest, share_with), free_bytes()
    if free < needed:
        raise InsufficientMemoryError(
            f"version {manifest.version}: expected {needed / 1e6:,.0f} MB of free memory to open it, "
            f"found {free / 1e6:,.0f} MB; give the service more memory"
        )


def private_bytes(manifest: Manifest, share_with: Sequence[Manifest] = ()) -> int:
    """An upper estimate of the private memory that opening a bundle adds: memory that is not backed by files.

    An encoder or a tokenizer that an open bundle shares adds nothing.
    """
    alike = [other for other in share_with if other.encoder == manifest.encoder]

    def added(name: str) -> int:
        return 0 if any(other.files[name] == manifest.files[name] for other in alike) else manifest.files[name].size

    graph, inputs = map(added, manifest.encoder_files)
    private = _ENCODER_FACTOR * graph + _TOKENIZER_FACTOR * inputs
    return int(private) + _CONSTANT_BYTES
