"""The texts that `recollect presets` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recollect.core.system.console import aligned
from recollect.trainer.presets.preset import Preset, Sourced

_COLUMNS = ("preset", "dataset", "method", "encoder", "batch", "epochs or steps", "learning rate")


def table(presets: Sequence[Preset]) -> list[str]:
    """The lines of a table with one row for each preset."""
    return [
        *aligned([_COLUMNS, *map(_row, presets)]),
        "",
        "`recollect presets NAME` shows a preset with the source of each value.",
    ]


def details(preset: Preset) -> list[str]:
    """The lines about one preset: its values with their sources, and the commands that use it."""
    lines = [f"{preset.name}: {preset.method} on {preset.dataset}", f"published: {preset.figure}"]
    lines += [f"dataset: {variant}" for variant in preset.variants]
    for verb, flags in (("train", preset.flags), ("build", preset.build), ("evaluate", preset.evaluate)):
        lines += ["", *_values(f"recollect {verb}", flags)] if flags else []
    lines += ["", *(f"--{_flag(name)}: {reason}" for name, reason in preset.missing.items())]
    lines += [*map("different: {}".format, preset.differences), ""]
    lines += [f"{key} = {source}" for key, source in preset.sources.items()]
    return [*lines, "", *_commands(preset)]


def _row(preset: Preset) -> tuple[str, ...]:
    flags = {name: _argument(flag.value) for name, flag in preset.flags.items()}
    length = f"{flags['epochs']} epochs" if "epochs" in flags else f"{flags['max_steps']} steps"
    encoder = flags["encoder"].rpartition("/")[2] if "encoder" in flags else f"from {preset.first_stage}"
    return (
        preset.name,
        preset.dataset,
        preset.method,
        encoder,
        flags.get("batch_size", "-"),
        length,
        flags.get("learning_rate", "-"),
    )


def _values(title: str, flags: dict[str, Sourced]) -> list[str]:
    names, values = [f"--{_flag(name)}" for name in flags], [_argument(flag.value) for flag in flags.values()]
    wide, wider = (max(map(len, texts), default=0) for texts in (names, values))
    return [
        f"{title}:",
        *(
            f"  {name:{wide}}  {value:{wider}}  {flag.source}"
            for name, value, flag in zip(names, values, flags.values(), strict=True)
        ),
    ]


def _commands(preset: Preset) -> list[str]:
    first, start = preset.first_stage, " --from first" if preset.first_stage else ""
    return [
        *([f"recollect train {preset.dataset} --out first --preset {first}"] if first else []),
        f"recollect train {preset.dataset} --out run --preset {preset.name}{start}",
        " ".join(["recollect build run --store store --lexical off --activate", *_arguments(preset.build)]),
        " ".join([f"recollect evaluate {preset.dataset} --store store", *_arguments(preset.evaluate)]),
    ]


def _arguments(flags: dict[str, Sourced]) -> list[str]:
    return [f"--{_flag(name)} {_argument(flag.value)}" for name, flag in flags.items()]


def _argument(value: Any) -> str:
    """The value as an argument of a command."""
    if isinstance(value, list):
        return ",".join(map(_argument, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flag(name: str) -> str:
    return name.replace("_", "-")
