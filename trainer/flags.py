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
    method = METHODS[settings.method]
    for name in sorted(given & set().union(*(each.flags for each in METHODS.values())) - method.flags):
        heeding = " or ".join(each.name for each in METHODS.values() if name in each.flags)
        yield f"{_flag(name)}: expected --method {heeding}, found --method {settings.method}; leave it out"
    if "temperature" in given and method.temperature is None:
        yield f"--temperature: expected a method with a softmax, found --method {settings.method}; leave it out"
    yield from _prototype_complaints(settings)
    if settings.tune == "yes" and (settings.epochs == 0 or settings.validation_fraction == 0):
        found = "--epochs 0" if settings.epochs == 0 else "--validation-fraction 0"
        yield f"--tune: expected something held out to ask, found {found}; use `recollect tune` afterwards"
    unclustered = method.clusters == "none" if settings.clusters is None else settings.clusters == 0
    if unclustered:
        yield from _idle(settings, ("cluster_from", "cluster_every"), "clusters", "clusters to make batches of")
    if not method.mined(settings.hard_negatives):
        mining = ("mine_every", "mine_top", "mine_search")
        yield from _idle(settings, mining, "hard_negatives", "hard negatives to mine")


def _idle(settings: TrainSettings, flags: tuple[str, ...], switch: str, what: str) -> Iterator[str]:
    """Flags that say how, of what `switch` has turned off: given, or as the method has it."""
    found = f"--method {settings.method} without any" if getattr(settings, switch) is None else f"{_flag(switch)} 0"
    for name in flags:
        if name in settings.model_fields_set:
            yield f"{_flag(name)}: expected {what}, found {found}; leave it out, or give {_flag(switch)}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _prototype_complaints(settings: TrainSettings) -> Iterator[str]:
    """What PRIME's own flags may hold."""
    tokens, (low, high) = settings.prototype, settings.margin
    if len(set(tokens)) < len(tokens):
        yield f"--prototype: expected each of its parts once, found {','.join(tokens)}; leave the second out"
    if tokens == ["free"]:
        yield "--prototype free: expected a part that tells labels of a cluster apart, found none; add text or centroid"
    if "bank" in settings.model_fields_set and "free" not in tokens:
        yield f"--bank: expected free vectors in prototypes, found --prototype {','.join(tokens)}; leave it out"
    if low > high:
        yield f"--margin: expected the lower bound first, found {low:g},{high:g}; turn them round"
