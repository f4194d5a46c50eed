"""The flags of `recollect train`: the shared ones and those of each method, and the contradictions between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ModelWrapValidatorHandler, model_validator

from recollect.core.settings import as_flag, is_encoder_url
from recollect.core.system.files import read_json
from recollect.trainer.errors import TrainingError
from recollect.trainer.modes import READ_IF, chosen_method, untrained, without_clusters, without_head, without_held_out
from recollect.trainer.presets.preset import find_preset
from recollect.trainer.settings import STATIC, DatasetSettings
from recollect.trainer.train_flags import OptionsOfAllMethods, SharedTrainSettings

# Flags that `--best` passes on; it sets all others itself.
_DATASET_FLAGS = {*DatasetSettings.model_fields, "propensity", "validation_fraction", "seed"}
_ENCODER_FLAGS = {
    *("encoder", "pooling", "query_prompt", "label_prompt", "max_length", "label_max_length"),
    *("device", "precision", "key_dtype"),
}
_BEST_FLAGS = _DATASET_FLAGS | _ENCODER_FLAGS | {"out", "overwrite", "best", "minutes"}
# Flags of the negatives that are drawn among the mined labels.
_OF_NEGATIVES = ("hard_negatives", "mine_top")
# The headings of the help, with their flags. A flag under two headings is under the first one only.
_HELP_GROUPS = {
    "the flags that matter first": (
        *("out", "text_columns", "label_column", "encoder", "max_length", "method", "train", "epochs", "best", "rank"),
    ),
    "data": (*DatasetSettings.model_fields,),
    "encoder": (
        *("static_from", "pooling", "query_prompt", "label_prompt", "label_max_length", "query_encoder", "lora"),
        *("from_", "vectors"),
    ),
    "training": (
        *("preset", "scale", "max_steps", "max_seconds", "batch_size", "micro_batch", "learning_rate", "warmup"),
        *("weight_decay", "clip_norm", "embedding_dropout", "validation_fraction", "validate_every"),
        *("validate_lambda", "minutes", "seed", "device", "precision"),
    ),
    "method": (
        *("head_learning_rate", "table_learning_rate", "temperature", "normalise", "label_inputs", "positives"),
        *("positive_sampling", "propensity", "hard_negatives", "mine_from", "mine_every", "mine_every_epochs"),
        *("mine_top", "clusters", "cluster_from", "cluster_every", "cluster_double_at"),
        *OptionsOfAllMethods.model_fields,
    ),
    "output": ("tune", "key_dtype", "save_minutes", "resume", "overwrite"),
}


class TrainSettings(OptionsOfAllMethods, SharedTrainSettings):
    """Train an encoder on a dataset and build its memory: checkpoint/ and memory/ in a run folder."""

    read_if = READ_IF
    help_groups = _HELP_GROUPS

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_preset(
        cls, given: dict[str, Any], validate: ModelWrapValidatorHandler[TrainSettings]
    ) -> TrainSettings:
        """Use the values of --from and --preset for the flags that the user does not give.

        These flags do not count as given. A preset chooses the trained part, also with --from.
        """
        earlier = start_from(Path(run), given) if (run := given.get("from")) is not None else {}
        settings = validate(given | earlier)
        by_user = settings.model_fields_set - (earlier.keys() - given.keys())
        settings.model_fields_set.intersection_update(by_user)
        if settings.preset is None:
            return settings
        preset = find_preset(settings.preset)
        if preset.first_stage and not by_user & {"from_", "encoder"}:
            raise TrainingError(
                f"--preset {preset.name}: expected --from with a run of --preset {preset.first_stage}, found none; "
                "train that preset first"
            )
        own = preset.settings(settings.scale)
        earlier.pop("train", None)
        if "method" in by_user and settings.method != own["method"]:
            raise TrainingError(
                f"--method {settings.method}: expected {own['method']}, the method of --preset {settings.preset}; "
                "omit --method, or choose another preset"
            )
        settings = validate(own | given | earlier)
        settings.model_fields_set.intersection_update(by_user)
        return settings

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> TrainSettings:
        """Refuse contradictory flags before a file is read or removed.

        A flag without effect is refused only if the user gives it.
        """
        for message in _contradictions(self):
            raise TrainingError(message)
        return self


def _contradictions(settings: TrainSettings) -> Iterator[str]:
    if settings.resume and settings.overwrite:
        yield "--resume, --overwrite: expected only one of these flags, found both; omit one"
    for flag, path in (("--vectors", settings.vectors), ("--encoder", Path(settings.encoder))):
        if path is not None and path.exists() and path.resolve().is_relative_to(settings.out.resolve()):
            yield (
                f"{flag} {path}: expected a folder outside --out {settings.out}, which this command writes, "
                "found a folder inside; choose another --out"
            )
    if settings.best:
        yield from _contradictions_with_best(settings)
    yield from settings.unread_flags()
    yield from _contradictions_with_method(settings)
    if not settings.normalise:
        yield from _contradictions_without_normalisation(settings)
    if settings.static_from == STATIC:
        yield f"--static-from {STATIC}: expected a pretrained encoder, found no name of one; name one, such as minilm"
    if settings.query_encoder == settings.encoder == STATIC:
        yield f"--query-encoder {STATIC}: expected --encoder with a transformer, found {STATIC}; omit --query-encoder"
    if settings.tune == "yes" and (found := untrained(settings) or without_held_out(settings)):
        yield f"--tune: expected held-out instances, found {found}; use `recollect tune` afterwards"


def _contradictions_with_best(settings: TrainSettings) -> Iterator[str]:
    """Yield a message for each flag that --best sets itself."""
    for name in sorted(settings.model_fields_set - _BEST_FLAGS):
        flag = as_flag(name)
        yield f"{flag}: expected no such flag, because --best chooses it; omit {flag} or --best"
    if settings.encoder == STATIC:
        yield f"--encoder {STATIC}: expected a pretrained encoder, because --best trains a static one too; omit it"
    if is_encoder_url(settings.encoder):
        yield "--best: expected an encoder with its own weights, because --best distils it, found a server; omit --best"
    if settings.validation_fraction == 0:
        yield "--validation-fraction 0: expected held-out instances, by which --best chooses; omit the flag"


def _contradictions_with_method(settings: TrainSettings) -> Iterator[str]:
    method, given = chosen_method(settings), settings.model_fields_set
    if settings.train == "head" and settings.epochs != 0 and (found := without_head(settings)):
        yield f"--train head: expected a method with a head, found {found}; train an adapter"
    yield from method.options.contradictions(settings)
    if (drawn := method.mined(settings.hard_negatives) or 0) > settings.mine_top and given & {*_OF_NEGATIVES}:
        yield (
            f"--hard-negatives {drawn}: expected at most {settings.mine_top}, the labels of each instance that "
            "--mine-top keeps; choose fewer, or a larger --mine-top"
        )


def _contradictions_without_normalisation(settings: TrainSettings) -> Iterator[str]:
    """Yield a message for each part of a training that needs unit vectors."""
    flag = "--no-normalise"
    if settings.trained != "full" and settings.epochs != 0:
        found = f"--train {settings.trained}"
        yield f"{flag}: expected --train full or --epochs 0, because an adapter makes unit vectors, found {found}"
    if without_head(settings) is None:
        yield f"{flag}: expected a method without a head, such as dexml, found --method {settings.method}"
    if without_clusters(settings) is None:
        found = f"--method {settings.method}" if settings.clusters is None else f"--clusters {settings.clusters}"
        yield f"{flag}: expected random batches, because clusters need unit vectors, found {found}; add --clusters 0"
    if settings.query_encoder == STATIC:
        yield f"{flag}: expected --query-encoder same, which keeps lengths, found --query-encoder {STATIC}"


# Settings that the checkpoint fixes: it was trained with them.
_FIXED = ("pooling", "max_length", "label_max_length", "query_prompt", "label_prompt")


def start_from(run: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that `--from` stands for: `--encoder RUN/checkpoint`, and the settings that belong to the checkpoint.

    The adapter is part of the checkpoint. A head is not loaded, because it has weights for the labels of that run.

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
            flag = as_flag(name)
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
