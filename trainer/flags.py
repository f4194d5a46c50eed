"""Flags of `recollect train` that contradict each other, or that nothing would heed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainer.errors import TrainingError
from trainer.methods import METHODS
from trainer.settings import TrainSettings


def check_flags(settings: TrainSettings) -> None:
    """Refuse what cannot be meant, before anything is read or removed; of idle flags only those that were given.

    Raises:
        TrainingError: Naming the flag, and what it needs.
    """
    for complaint in _complaints(settings):
        raise TrainingError(complaint)


def _complaints(settings: TrainSettings) -> Iterator[str]:
    given = settings.model_fields_set
    if settings.resume and settings.overwrite:
        yield "--resume, --overwrite: expected one of them, found both; go on, or start again"
    for flag, path in (("--vectors", settings.vectors), ("--encoder", Path(settings.encoder))):
        if path is not None and path.exists() and path.resolve().is_relative_to(settings.out.resolve()):
            yield (
                f"{flag} {path}: expected a folder outside --out {settings.out}, which is written, found one inside; "
                "choose another --out"
            )
    if settings.vectors is not None and (settings.train != "adapter" or settings.epochs == 0):
        found = "--epochs 0" if settings.epochs == 0 else "--train full"
        yield f"--vectors: expected --train adapter, as only an adapter learns from vectors, found {found}"
    if "label_inputs" in given and settings.train == "full":
        yield "--label-inputs: expected --train adapter, as a whole encoder reads a label's text, found --train full"
    if "label_key_alpha" in given and settings.label_keys == "text":
        yield "--label-key-alpha: expected --label-keys enriched, which it is a weight of, found --label-keys text"
    mining = [name for name in ("mine_every", "mine_top", "mine_search") if name in given]
    if mining and not METHODS[settings.method].mined(settings.hard_negatives):
        flag = mining[0].replace("_", "-")
        found = f"--method {settings.method} without any" if settings.hard_negatives is None else "--hard-negatives 0"
        yield f"--{flag}: expected hard negatives to mine, found {found}; leave it out, or give --hard-negatives"
