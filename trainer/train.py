"""From a dataset to a run folder: `checkpoint/`, an encoder, and `memory/`, what it remembers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoint import encoder_digest, save_checkpoint
from trainer.encoder import choose_device
from trainer.errors import MemoryFolderError
from trainer.formats import open_dataset
from trainer.memory import MemoryPlan, is_complete, saved_plan, write_memory
from trainer.pretrained import load_pretrained
from trainer.settings import TrainSettings


def train(settings: TrainSettings) -> None:
    """Write a run folder, going on where an interrupted run with the same settings stopped.

    Raises:
        DatasetError: If the dataset breaks its contract.
        EncoderError: If the encoder cannot be loaded or the device is absent.
        MemoryFolderError: If the run folder holds a memory made of something else.
    """
    dataset = open_dataset(settings.dataset, settings.format)
    instances = dataset.read_split("train")
    _say(f"{settings.dataset}: {len(instances):,} instances, {len(dataset.labels):,} labels")
    encoder = load_pretrained(
        settings.encoder,
        settings.pooling,
        settings.max_length,
        settings.label_max_length,
        choose_device(settings.device),
    )
    plan = MemoryPlan.of(dataset.labels, instances, encoder, encoder_digest(encoder), settings.key_dtype)
    memory, checkpoint = settings.out / "memory", settings.out / "checkpoint"
    with _alone_in(settings.out):
        same = _is_of(plan, memory, settings)
        if not same:
            shutil.rmtree(memory, ignore_errors=True)
        if not same or not checkpoint.is_dir():
            save_checkpoint(encoder, checkpoint)
        if is_complete(memory):
            _say(f"{memory}: already done, {plan.keys:,} keys")
            return
        start = time.monotonic()
        encoded = write_memory(memory, plan, dataset.labels, instances, encoder)
        seconds = time.monotonic() - start
        _say(f"{memory}: {plan.keys:,} keys, {encoded:,} encoded now at {encoded / seconds:,.0f} texts/s")


@contextlib.contextmanager
def _alone_in(run: Path) -> Iterator[None]:
    """Keep a second `recollect train` out of a run folder, and name the folder where a full disk names none."""
    run.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise MemoryFolderError(
            f"{run}: another `recollect train` writes here; wait for it, or choose another --out"
        ) from None
    except OSError as error:
        error.filename = error.filename or str(run)
        raise
    finally:
        os.close(descriptor)


def _is_of(plan: MemoryPlan, memory: Path, settings: TrainSettings) -> bool:
    """Whether the run folder holds this very memory, whole or begun; another is refused, or may be overwritten."""
    try:
        saved = saved_plan(memory)
    except MemoryFolderError:
        if settings.overwrite:
            return False
        raise
    if saved is None or saved == plan or settings.overwrite:
        return saved == plan
    differs = [name for name in vars(plan) if getattr(saved, name) != getattr(plan, name)]
    raise MemoryFolderError(
        f"{settings.out}: expected no other memory here, found one that differs in {', '.join(differs)}; "
        "choose another --out, or replace it with --overwrite"
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201
