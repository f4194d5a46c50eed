"""The flags of `recollect train`: the shared ones and those of each method, and the contradictions between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ModelWrapValidatorHandler, model_validator

from recollect.service.files import read_json
from recollect.trainer.errors import TrainingError
from recollect.trainer.methods import METHODS
from recollect.trainer.methods.prime import PrimeOptions
from recollect.trainer.methods.table import OvaOptions, SoftTopKOptions, UnidecOptions
from recollect.trainer.presets.preset import find_preset
from recollect.trainer.settings import STATIC, DatasetSettings, SharedTrainSettings

# Flags that `--best` passes on; it sets all others itself.
_DATASET_FLAGS = {*DatasetSettings.model_fields, "propensity", "validation_fraction", "seed"}
_PROMPTS = ("query_prompt", "label_prompt")
_ENCODER_FLAGS = {"encoder", "pooling", *_PROMPTS, "max_length", "label_max_length", "device", "precision", "key_dtype"}
_BEST_FLAGS = _DATASET_FLAGS | _ENCODER_FLAGS | {"out", "overwrite", "best", "minutes"}


class TrainSettings(PrimeOptions, UnidecOptions, SoftTopKOptions, OvaOptions, SharedTrainSettings):
    """Train an encoder on a dataset and build its memory: checkpoint/ and memory/ in a run folder."""

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_preset(
        cls, given: dict[str, Any], validate: ModelWrapValidatorHandler[TrainSettings]
    ) -> TrainSettings:
        """Use the values of --preset for the flags that the user does not give. These flags do not count as given.

        --from adds the flags of its run first, but a preset chooses the trained part.

        Raises:
            TrainingError: If the preset is unknown, has another method than --method, or needs a run to start from. If
                a flag contradicts --from.
        """
        start = {} if (run := given.get("from")) is None else start_from(Path(run), given)
        settings = validate(given | start)
        if settings.preset is None:
            return settings
        preset, by_user = find_preset(settings.preset), settings.model_fields_set.copy()
        if preset.first_stage and not by_user & {"from_", "encoder"}:
            raise TrainingError(
                f"--preset {preset.name}: expected --from with a run of --preset {preset.first_stage}, found none; "
                "train that preset first"
            )
        own = preset.settings(settings.scale)
        start.pop("train", None)
        if "method" in by_user and settings.method != own["method"]:
            raise TrainingError(
                f"--method {settings.method}: expected {own['method']}, the method of --preset {settings.preset}; "
                "omit --method, or choose another preset"
            )
        settings = validate(own | given | start)
        settings.model_fields_set.intersection_update(by_user)
        return settings

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> TrainSettings:
        """Refuse contradictory flags before a file is read or removed.

        A flag without effect is refused only if the user gives it.

        Raises:
            TrainingError: If flags contradict each other. The message names the flag and its requirement. The error is
                no ValueError, so pydantic passes it on unchanged.
        """
        for message in _contradictions(self):
            raise TrainingError(message)
        return self


def _contradictions(settings: TrainSettings) -> Iterator[str]:
    given = settings.model_fields_set
    if settings.resume and settings.overwrite:
        yield "--resume, --overwrite: expected only one of these flags, found both; omit one"
    for flag, path in (("--vectors", settings.vectors), ("--encoder", Path(settings.encoder))):
        if path is not None and path.exists() and path.resolve().is_relative_to(settings.out.resolve()):
            yield (
                f"{flag} {path}: expected a folder outside --out {settings.out}, which this command writes, "
                "found a folder inside; choose another --out"
            )
    if settings.vectors is not None and settings.trained == "full" and settings.epochs != 0:
        found = _trained_flag(settings)
        yield f"--vectors: expected --train adapter or --epochs 0, because all vectors change otherwise, found {found}"
    if "label_inputs" in given and settings.trained == "full":
        found = _trained_flag(settings)
        yield f"--label-inputs: expected --train adapter, because an encoder reads label texts, found {found}"
    if "static_from" in given and settings.encoder != STATIC:
        yield f"--static-from: expected --encoder {STATIC}, found --encoder {settings.encoder}; omit the flag"
    if settings.encoder == STATIC:
        for name in _PROMPTS:
            if getattr(settings, name):
                yield f"{_flag(name)}: expected an encoder with a transformer, found --encoder {STATIC}; omit the flag"
    if settings.static_from == STATIC:
        yield f"--static-from {STATIC}: expected a pretrained encoder, found no name of one; name one, such as minilm"
    yield from _contradictions_with_best(settings)
    yield from _contradictions_with_method(settings)
    if not settings.normalise:
        yield from _contradictions_without_normalisation(settings)
    if "scale" in given and settings.preset is None:
        yield "--scale: expected --preset, whose values it multiplies, found none; add --preset, or omit the flag"
    if settings.lora and (settings.trained != "full" or settings.encoder == STATIC):
        found = f"--encoder {STATIC}" if settings.encoder == STATIC else _trained_flag(settings)
        yield f"--lora {settings.lora}: expected --train full and an encoder with a transformer, found {found}"
    if settings.query_encoder == settings.encoder == STATIC:
        yield f"--query-encoder {STATIC}: expected --encoder with a transformer, found {STATIC}; omit --query-encoder"
    if settings.tune == "yes" and (settings.epochs == 0 or settings.validation_fraction == 0):
        found = "--epochs 0" if settings.epochs == 0 else "--validation-fraction 0"
        yield f"--tune: expected held-out instances, found {found}; use `recollect tune` afterwards"


def _contradictions_with_best(settings: TrainSettings) -> Iterator[str]:
    """Yield a message for each flag that --best sets itself, or for --minutes without --best."""
    given = settings.model_fields_set
    if not settings.best:
        if "minutes" in given:
            yield "--minutes: expected --best, found no --best; use --max-seconds, or add --best"
        return
    if settings.encoder == STATIC:
        yield f"--encoder {STATIC}: expected a pretrained encoder, because --best trains a static one too; omit it"
    if settings.validation_fraction == 0:
        yield "--validation-fraction 0: expected held-out instances, by which --best chooses; omit the flag"
    for name in sorted(given - _BEST_FLAGS):
        yield f"{_flag(name)}: expected no such flag, because --best chooses it; omit {_flag(name)} or --best"


def _contradictions_without_normalisation(settings: TrainSettings) -> Iterator[str]:
    """Yield a message for each part of a training that needs unit vectors."""
    method, flag = METHODS[settings.method], "--no-normalise"
    if settings.trained != "full" and settings.epochs != 0:
        found = _trained_flag(settings)
        yield f"{flag}: expected --train full or --epochs 0, because an adapter makes unit vectors, found {found}"
    if method.has_head(settings):
        yield f"{flag}: expected a method without a head, such as dexml, found --method {settings.method}"
    if settings.clusters or (settings.clusters is None and method.clusters != "none"):
        found = f"--method {settings.method}" if settings.clusters is None else f"--clusters {settings.clusters}"
        yield f"{flag}: expected random batches, because clusters need unit vectors, found {found}; add --clusters 0"
    if settings.query_encoder == STATIC:
        yield f"{flag}: expected --query-encoder same, which keeps lengths, found --query-encoder {STATIC}"


def _contradictions_with_method(settings: TrainSettings) -> Iterator[str]:
    """Yield a message for each flag that the chosen method does not read."""
    method, given = METHODS[settings.method], settings.model_fields_set
    of_any_method = {name for each in METHODS.values() for name in each.options.model_fields}
    for name in sorted(given & of_any_method - method.options.model_fields.keys()):
        reading = " or ".join(each.name for each in METHODS.values() if name in each.options.model_fields)
        yield f"{_flag(name)}: expected --method {reading}, found --method {settings.method}; omit the flag"
    if "temperature" in given and method.temperature is None:
        yield f"--temperature: expected a method with a softmax, found --method {settings.method}; omit the flag"
    if not method.has_head(settings):
        found = f"--method {settings.method}{f' without {_flag(method.head_option)}' if method.head_option else ''}"
        if settings.train == "head":
            yield f"--train head: expected a method with a head, found {found}; train an adapter"
        for name in sorted(given & {"head_learning_rate", "table_learning_rate"}):
            yield f"{_flag(name)}: expected a method with a head, found {found}; omit the flag"
    yield from method.options.contradictions(settings)
    without_clusters = method.clusters == "none" if settings.clusters is None else settings.clusters == 0
    if without_clusters:
        yield from _ignored(
            settings, ("cluster_from", "cluster_every", "cluster_double_at"), "clusters", "clustered batches"
        )
    if not method.mined(settings.hard_negatives):
        yield from _ignored(
            settings,
            ("mine_from", "mine_every", "mine_every_epochs", "mine_top"),
            "hard_negatives",
            "hard negatives to mine",
        )
    elif "mine_every_epochs" in given and settings.mine_every:
        yield (
            f"--mine-every-epochs: expected no --mine-every, found --mine-every {settings.mine_every}; omit one of the "
            "two flags, or set --mine-every 0 for a preset"
        )


def _ignored(settings: TrainSettings, flags: tuple[str, ...], switch: str, needed: str) -> Iterator[str]:
    """Yield a message for each given flag that has no effect because the flag `switch` is 0 (given, or by default)."""
    given = getattr(settings, switch)
    found = f"--method {settings.method}, which uses none" if given is None else f"{_flag(switch)} {given}"
    for name in flags:
        if name in settings.model_fields_set:
            yield f"{_flag(name)}: expected {needed}, found {found}; omit the flag, or set {_flag(switch)}"


def _trained_flag(settings: TrainSettings) -> str:
    """The flag by which the user chose to train the whole encoder."""
    return f"--train {settings.train}" if settings.train else f"--encoder {settings.encoder}"


def _flag(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"


# Settings that the checkpoint fixes: it was trained with them.
_FIXED = ("pooling", "max_length", "label_max_length", "query_prompt", "label_prompt")


def start_from(run: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that `--from` stands for: `--encoder RUN/checkpoint`, and the settings that belong to the checkpoint.

    The adapter is part of the checkpoint. A head is not loaded, because it has weights for the labels of that run.

    Args:
        run: The earlier run.
        given: The flags that the user gives, with underscores.

    Raises:
        TrainingError: If the run has no readable checkpoint, or a given flag contradicts it.
    """
    saved = _read(run, run / "checkpoint" / "recollect.json")
    if "encoder" in given:
        raise TrainingError(
            f"--from {run}: expected no --encoder, because the run has a checkpoint, found --encoder "
            f"{given['encoder']}; omit one of the two flags"
        )
    for name in _FIXED:
        if name in given and str(given[name]) != str(saved.get(name)):
            flag = f"--{name.replace('_', '-')}"
            raise TrainingError(
                f"--from {run}: expected {flag} {saved.get(name)}, as in that run, found {given[name]}; omit {flag}"
            )
    flags = {name: saved[name] for name in _FIXED if name in saved}
    if saved.get("normalised") is False and "normalise" not in given:
        flags["normalise"] = False
    training = run / "training.json"
    if "train" not in given and training.is_file():
        flags["train"] = _read(run, training).get("recipe", {}).get("train")
    return flags | {"encoder": str(run / "checkpoint")}


def _read(run: Path, path: Path) -> dict[str, Any]:
    try:
        saved = read_json(path)
        if not isinstance(saved, dict):
            raise TypeError(f"found {type(saved).__name__}")
    except FileNotFoundError:
        raise TrainingError(
            f"--from {run}: expected a run folder with a checkpoint, found no {path.name}; name the --out of an "
            "earlier `recollect train`"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(f"{path}: expected the settings of a run, found: {error!r}; train it again") from None
    return saved
