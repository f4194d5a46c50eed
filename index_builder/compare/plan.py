"""The plan of a comparison: its contestants, and the flags of `recollect train` for each run.

The contestants are the untrained encoder, the methods, and the variants. A variant is a method with other flags, for
ablation studies. The user lists the variants in a TOML file:

    [prime-random-batches]
    method = "prime"
    clusters = 0
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from recollect.index_builder.errors import BuildError
from recollect.index_builder.settings import METHODS, CompareSettings
from recollect.trainer.data.split import Split
from recollect.trainer.errors import TrainingError
from recollect.trainer.recipe import Recipe
from recollect.trainer.settings import STATIC
from recollect.trainer.train_settings import TrainSettings
from recollect.trainer.training.validation import hold_out

# Name of the baseline of every comparison: the pretrained encoder without training.
UNTRAINED = "untrained"
# All contestants have the same flags for the dataset, the encoder and the training budget.
_DATASET_FLAGS = ("format", "text_fields", "empty_texts", "label_language", "unknown_labels", "propensity")
_ENCODER_FLAGS = (*_DATASET_FLAGS, "encoder", "static_from", "pooling", "max_length", "label_max_length", "device")
_BUDGET_FLAGS = ("train", "epochs", "max_steps", "max_seconds", "precision")
# All contestants have the same values for these flags too, but a variant may override them.
_STEP_FLAGS = ("batch_size", "learning_rate")
SHARED_FLAGS = (*_ENCODER_FLAGS, *_BUDGET_FLAGS, *_STEP_FLAGS)
# Flags that the comparison sets itself for each run.
_RUN_FLAGS = (
    *("dataset", "out", "preset", "scale", "seed", "vectors"),
    *("tune", "rank", "best", "minutes", "resume", "overwrite"),
)
# The name of a variant is also the name of a row in the report and of a run folder. A variant must not end like
# `rae-seed1`, because the run of the method `rae` with seed 1 has this folder name.
_VARIANT_NAME, _SEED_SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"), re.compile(r".*-seed\d+")


@dataclass(frozen=True)
class Contestant:
    """A method or a variant of a method, with the flags for its training.

    Attributes:
        name: Name of the contestant's row in the table.
        flags: All arguments of `recollect train`, except the arguments that differ between seeds.
        own: The flags that the variants file states for a variant; empty for a method.
    """

    name: str
    flags: tuple[str, ...]
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """The training of a contestant with one seed."""

    contestant: Contestant
    seed: int

    @property
    def name(self) -> str:
        """Name of the run folder. It contains the seed unless the seed is 0, the default."""
        return self.contestant.name if self.seed == 0 else f"{self.contestant.name}-seed{self.seed}"


def plan_runs(settings: CompareSettings) -> list[Run]:
    """List all runs. The untrained encoder comes first, because the other runs may train on its vectors.

    Raises:
        BuildError: If there is nothing to compare, or `recollect train` would reject a contestant's flags.
    """
    runs = [Run(Contestant(UNTRAINED, (*_explicit_flags(settings, _ENCODER_FLAGS), "--epochs=0")), seed=0)]
    for contestant in _trained_contestants(settings):
        _parse_flags(contestant, settings)
        runs += [Run(contestant, seed) for seed in settings.seeds]
    if len(runs) == 1:
        raise BuildError("--methods: expected at least one method, or a file with --variants, found neither; name one")
    return runs


def check_sizes(runs: list[Run], settings: CompareSettings, train: Split, labels: int, device: str) -> None:
    """Check, before any training starts, that each contestant can be trained on a dataset of this size.

    Raises:
        BuildError: If a contestant cannot; the message names the contestant.
    """
    for run in runs[1:]:  # the first run is the untrained encoder, which needs no training
        parsed = _parse_flags(run.contestant, settings)
        instances = int((~hold_out(train.labels, parsed.validation_fraction, run.seed)).sum())
        try:
            static = parsed.encoder == STATIC
            Recipe.of(parsed, {}, "", "", instances=instances, labels=labels, device=device, static=static)
        except TrainingError as error:
            raise BuildError(f"{_origin(run.contestant, settings)}: {error}") from None


def _trained_contestants(settings: CompareSettings) -> Iterator[Contestant]:
    for method in settings.methods:
        yield Contestant(method, (*_explicit_flags(settings, SHARED_FLAGS), f"--method={method}"))
    if settings.variants is None:
        return
    for name, own in _read_variants(settings.variants).items():
        shared = _explicit_flags(settings, (flag for flag in SHARED_FLAGS if flag not in own))
        yield Contestant(name, (*shared, *own.values()), own=tuple(own.values()))


def _explicit_flags(settings: CompareSettings, names: Iterable[str]) -> list[str]:
    """The flags that the user set. For all other flags, `recollect train` applies its own defaults."""
    explicit = [name for name in names if name in settings.model_fields_set]
    return [f"--{name.replace('_', '-')}={_as_argument(getattr(settings, name))}" for name in explicit]


def _as_argument(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _parse_flags(contestant: Contestant, settings: CompareSettings) -> TrainSettings:
    """Parse a contestant's flags as `recollect train` does.

    Raises:
        BuildError: If a flag is invalid.
    """
    origin = _origin(contestant, settings)
    arguments = [str(settings.dataset), f"--out={settings.out / 'runs' / contestant.name}", *contestant.flags]
    try:
        parsed = TrainSettings(_cli_parse_args=arguments, _cli_exit_on_error=False)
    except ValidationError as error:
        problem = error.errors()[0]
        expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        key = problem["loc"][0] if problem["loc"] else "flags"
        raise BuildError(f"{origin} {key}: expected {expected}; found {problem['input']!r}") from None
    except SettingsError as error:
        raise BuildError(f"{origin}: {str(error).removeprefix('error parsing CLI: ')}") from None
    except TrainingError as error:
        raise BuildError(f"{origin}: {error}") from None
    return parsed


def _origin(contestant: Contestant, settings: CompareSettings) -> str:
    """The flag or file in which the user named a contestant, for error messages."""
    return f"{settings.variants}: [{contestant.name}]" if contestant.own else f"--methods {contestant.name}"


def _read_variants(path: Path) -> dict[str, dict[str, str]]:
    """Read the flags of each variant, by variant name and key.

    Raises:
        BuildError: If the file is invalid; the message names the table and the key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: expected TOML with one table for each variant, found: {error}") from None
    for name, table in tables.items():
        _check_variant(path, name, table)
    return {name: {key: _variant_flag(path, name, key, table[key]) for key in table} for name, table in tables.items()}


def _check_variant(path: Path, name: str, table: Any) -> None:
    where = f"{path}: [{name}]"
    if not isinstance(table, dict):
        raise BuildError(f"{path}: {name}: expected one table for each variant, found a key outside any table")
    if name in (UNTRAINED, *METHODS):
        raise BuildError(
            f"{where}: expected a name that no method has, found the name of a method; "
            f"rename the variant, as in [{name}-variant]"
        )
    if not _VARIANT_NAME.fullmatch(name) or _SEED_SUFFIX.fullmatch(name):
        raise BuildError(
            f"{where}: expected a name of letters, digits, '.', '_' and '-' that does not end in -seed and a number; "
            "rename the variant"
        )
    if "method" not in table:
        raise BuildError(f'{where}: expected the key "method", found none; add one, as in method = "rae"')


def _variant_flag(path: Path, name: str, key: str, value: Any) -> str:
    """Convert a key of a variant and its value to an argument of `recollect train`."""
    where = f"{path}: [{name}] {key}"
    if key in (*_ENCODER_FLAGS, *_BUDGET_FLAGS, *_RUN_FLAGS):
        raise BuildError(
            f"{where}: expected a flag that may differ between variants, found a flag that the comparison sets; "
            "remove it"
        )
    if key not in TrainSettings.model_fields:
        raise BuildError(f"{where}: expected a flag of `recollect train`, with underscores; found an unknown name")
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if not isinstance(value, (str, int, float, list)):
        raise BuildError(f"{where}: expected a string, a number, true, false or a list, found {type(value).__name__}")
    return f"--{flag}={_as_argument(value)}"
