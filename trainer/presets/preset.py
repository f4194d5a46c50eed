"""A preset: the flags of `recollect train` in a published experiment, and the source of each value.

The TOML files beside this module have one table for each preset. A preset inherits from the table `shared`, and from
the preset that it names as `base`. `datasets.toml` has one table for each published dataset.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from recollect.trainer.errors import TrainingError
from recollect.trainer.settings import STATIC

# Flags that `--scale` below 1 changes.
_MULTIPLIED = ("batch_size", "epochs", "max_steps", "mine_every", "mine_every_epochs", "cluster_every")
_FIRST_EPOCHS = ("mine_from", "cluster_from")
_DATASETS = "datasets.toml"
_LEAST = {"batch_size": 8}
_MOST_TOKENS = 32
# Flags without a value in a smaller training: pooling suits the encoder, the bank the number of labels, the warm-up the
# steps, clusters the number of instances, and micro-batches the memory of a GPU.
_DEFAULTS = ("pooling", "bank", "warmup", "clusters", "micro_batch")


@dataclass(frozen=True)
class Sourced:
    """A value of a preset.

    Attributes:
        source: Where the value is published. It starts with a key of `Preset.sources`.
    """

    value: Any
    source: str


@dataclass(frozen=True)
class Variant:
    """A published variant of a dataset: the numbers of training instances and labels, and their source."""

    instances: int
    labels: int
    source: str

    def __str__(self) -> str:
        return f"{self.instances:,} instances and {self.labels:,} labels ({self.source})"


@dataclass(frozen=True)
class Preset:
    """The settings of a published experiment.

    Attributes:
        name: `method/dataset`, the value of `--preset`.
        first_stage: The preset that trains the run to start from (`--from`). None: the preset has one stage.
        build: Flags of `recollect build` for the index of the published experiment.
        evaluate: Flags of `recollect evaluate` that answer as the published experiment does.
        missing: Flags that no source gives, with the reason. They have their defaults.
        differences: Facts in which the trainer differs from the published experiment.
        sources: Paper or file of each key that starts a source.
    """

    name: str
    method: str
    dataset: str
    variants: tuple[Variant, ...]
    figure: str
    first_stage: str | None
    flags: dict[str, Sourced]
    build: dict[str, Sourced]
    evaluate: dict[str, Sourced]
    missing: dict[str, str]
    differences: tuple[str, ...]
    sources: dict[str, str]

    def settings(self, scale: float = 1) -> dict[str, Any]:
        """The values of the flags, smaller if `scale` is below 1."""
        given = {"method": self.method} | {name: flag.value for name, flag in self.flags.items()}
        return given if scale == 1 else _scaled(given, scale)

    def describe_variant(self, instances: int, labels: int) -> str:
        """State which published variant of the dataset has these numbers of training instances and labels, if any."""
        for variant in self.variants:
            if (variant.instances, variant.labels) == (instances, labels):
                return f"--preset {self.name}: found {self.dataset} with {variant}"
        return (
            f"--preset {self.name}: expected {self.dataset} with {' or '.join(map(str, self.variants))}, found "
            f"{instances:,} instances and {labels:,} labels; the results are not comparable with the published ones"
        )


def find_preset(name: str) -> Preset:
    """Return the preset with a name.

    Raises:
        TrainingError: If there is none. The message suggests similar names.
    """
    presets = all_presets()
    if name in presets:
        return presets[name]
    near = difflib.get_close_matches(name.lower(), presets, n=3, cutoff=0.4)
    similar = f"similar names: {', '.join(near)}; " if near else ""
    raise TrainingError(
        f"preset {name}: expected the name of a preset, found none of this name; {similar}`recollect presets` lists all"
    )


@cache
def all_presets() -> dict[str, Preset]:
    """All presets by name, in alphabetic order."""
    folder, found = files("recollect.trainer.presets"), {}
    datasets = _read_toml(folder / _DATASETS)
    for file in sorted(folder.iterdir(), key=lambda path: path.name):
        if file.name.endswith(".toml") and file.name != _DATASETS:
            tables = _read_toml(file)
            shared = tables.pop("shared") | {"sources": tables.pop("sources")}
            for own, table in tables.items():
                base = tables.get(table.get("base"), {})
                dataset = datasets[(base | table).get("dataset", table.get("base", own))]
                name = f"{file.name.removesuffix('.toml')}/{own}"
                found[name] = _preset(name, dataset, datasets["sources"], [shared, base, table])
    return found


def _read_toml(file: Traversable) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _preset(name: str, dataset: dict[str, Any], sources: dict[str, str], tables: list[dict[str, Any]]) -> Preset:
    """Merge tables into a preset. A later table replaces the values of an earlier one.

    A training with held-out instances chooses the checkpoint at the lambda with which the experiment is evaluated.
    """
    merged: dict[str, Any] = {}
    for table in tables:
        merged |= table
    sourced = {
        key: {flag: Sourced(**value) for table in tables for flag, value in table.get(key, {}).items()}
        for key in ("flags", "build", "evaluate")
    }
    flags, evaluate = sourced["flags"], sourced["evaluate"]
    lambda_, propensity = evaluate["lambda"], Sourced(**dataset["propensity"])
    evaluate["propensity"] = propensity
    if "epochs" not in flags or flags["epochs"].value:
        flags |= {"validate_lambda": replace(lambda_, value=[lambda_.value]), "propensity": propensity}
    return Preset(
        name=name,
        method=merged["method"],
        dataset=dataset["name"],
        variants=tuple(Variant(**variant) for variant in dataset["variants"]),
        figure=merged["figure"],
        first_stage=merged.get("first_stage"),
        missing={flag: reason for table in tables for flag, reason in table.get("missing", {}).items()},
        differences=tuple(fact for table in tables for fact in table.get("differences", ())),
        sources=merged["sources"] | sources,
        **sourced,
    )


def _scaled(given: dict[str, Any], scale: float) -> dict[str, Any]:
    """Make a training smaller: fewer queries in a step, fewer steps, shorter texts, and a static encoder."""
    scaled = {name: value for name, value in given.items() if name not in _DEFAULTS} | {"encoder": STATIC}
    for name in _MULTIPLIED:
        if name in given:
            scaled[name] = min(given[name], max(_LEAST.get(name, 1), round(scale * given[name])))
    for name in _FIRST_EPOCHS:
        if name in given:
            scaled[name] = int(scale * given[name])
    for name in ("max_length", "label_max_length"):
        scaled[name] = min(given.get(name, _MOST_TOKENS), _MOST_TOKENS)
    if "cluster_double_at" in given:
        scaled["cluster_double_at"] = [int(scale * epoch) for epoch in given["cluster_double_at"]]
    return scaled
