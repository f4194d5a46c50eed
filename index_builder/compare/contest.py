"""What is run: the untrained encoder, a contestant a method and a contestant a variant, and the flags of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_settings import SettingsError

from index_builder.compare.variants import read_variants
from index_builder.errors import BuildError
from index_builder.settings import METHODS, CompareSettings
from trainer.data.split import Split
from trainer.errors import TrainingError
from trainer.flags import check_flags
from trainer.recipe import Recipe
from trainer.settings import TrainSettings
from trainer.validation import hold_out

# The encoder as it was given: the baseline of every comparison.
UNTRAINED = "untrained"
# What decides a text's vector before anything is trained, and what decides the training; all contestants share it.
_OF_ENCODER = ("format", "encoder", "pooling", "max_length", "label_max_length", "device")
_OF_BUDGET = ("train", "epochs", "max_steps", "max_seconds", "precision")
# Shared too, but a variant may say otherwise.
_OF_STEPS = ("batch_size", "learning_rate")
SHARED = (*_OF_ENCODER, *_OF_BUDGET, *_OF_STEPS)
_OF_RUN = ("dataset", "out", "seed", "vectors", "tune", "resume", "overwrite")


@dataclass(frozen=True)
class Contestant:
    """One way to train.

    Attributes:
        name: Of its row in the table.
        flags: Arguments of `recollect train`, those that all share included.
        own: Those that no other has.
    """

    name: str
    flags: tuple[str, ...]
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A contestant's training with one seed."""

    contestant: Contestant
    seed: int

    @property
    def name(self) -> str:
        """Of its folder; seed 0 is the usual one, and needs no mention."""
        return self.contestant.name if self.seed == 0 else f"{self.contestant.name}-seed{self.seed}"


def read_runs(settings: CompareSettings) -> list[Run]:
    """Every training that is asked for, the untrained encoder first: the others may learn from its vectors.

    Raises:
        BuildError: If there is nothing to compare, or `recollect train` would refuse a contestant's flags.
    """
    runs = [Run(Contestant(UNTRAINED, (*_given(settings, _OF_ENCODER), "--epochs=0")), seed=0)]
    for contestant in _trained(settings):
        _check(contestant, settings)
        runs += [Run(contestant, seed) for seed in settings.seeds]
    if len(runs) == 1:
        raise BuildError("--methods: expected at least one method, or --variants, found neither; nothing to compare")
    return runs


def _trained(settings: CompareSettings) -> Iterator[Contestant]:
    for method in settings.methods:
        yield Contestant(method, (*_given(settings, SHARED), f"--method={method}"))
    if settings.variants is None:
        return
    taken, decided = {UNTRAINED, *METHODS}, {*_OF_ENCODER, *_OF_BUDGET, *_OF_RUN}
    for name, own in read_variants(settings.variants, taken, decided).items():
        shared = _given(settings, (flag for flag in SHARED if flag not in own))
        yield Contestant(name, (*shared, *own.values()), own=tuple(own.values()))


def _given(settings: CompareSettings, names: Iterable[str]) -> list[str]:
    """Those of the shared flags that the user has set; the others are the training's to decide."""
    given = [name for name in names if name in settings.model_fields_set]
    return [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in given]


def check_sizes(runs: list[Run], settings: CompareSettings, train: Split, labels: int, device: str) -> None:
    """Refuse, before anything is trained, what a contestant's training would refuse for the dataset's size.

    Raises:
        BuildError: Naming the contestant.
    """
    for run in runs[1:]:  # the untrained encoder fits any
        parsed = _check(run.contestant, settings)
        taught = int((~hold_out(train.labels, parsed.validation_fraction, run.seed)).sum())
        try:
            Recipe.of(parsed, {}, "", "", instances=taught, labels=labels, device=device)
        except TrainingError as error:
            raise BuildError(f"{_where(run.contestant, settings)}: {error}") from None


def _where(contestant: Contestant, settings: CompareSettings) -> str:
    return f"{settings.variants}: [{contestant.name}]" if contestant.own else f"--methods {contestant.name}"


def _check(contestant: Contestant, settings: CompareSettings) -> TrainSettings:
    """Hand the flags to the training's own settings, which know best."""
    where = _where(contestant, settings)
    arguments = [str(settings.dataset), f"--out={settings.out / 'runs' / contestant.name}", *contestant.flags]
    try:
        parsed = TrainSettings(_cli_parse_args=arguments, _cli_exit_on_error=False)
        check_flags(parsed)
    except ValidationError as error:
        problem = error.errors()[0]
        expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        key = problem["loc"][0] if problem["loc"] else "flags"
        raise BuildError(f"{where} {key}: expected {expected}; found {problem['input']!r}") from None
    except SettingsError as error:
        raise BuildError(f"{where}: {str(error).removeprefix('error parsing CLI: ')}") from None
    except TrainingError as error:
        raise BuildError(f"{where}: {error}") from None
    return parsed
