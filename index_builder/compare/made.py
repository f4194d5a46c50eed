"""How a comparison was made, as its report tells it: settings, counts, seeds, machine and versions, and no path."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import torch

from index_builder.compare.contest import SHARED
from index_builder.compare.queries import Queries
from index_builder.compare.standing import Standing
from index_builder.settings import CompareSettings
from trainer.memory import MemoryPlan

# Of a digest, enough to tell two encoders apart.
_DIGITS = 12


def title(settings: CompareSettings) -> str:
    return f"Methods compared: {settings.dataset.resolve().name}, {_encoder_name(settings)}"


def how_it_was_made(
    settings: CompareSettings, standings: list[Standing], queries: Queries, plan: MemoryPlan, device: str
) -> dict[str, str]:
    """What a reader needs to make it again.

    Args:
        settings: What was asked for.
        standings: Of the contestants.
        queries: Of the test split.
        plan: Of the untrained memory, which knows the dataset's counts and the encoder.
        device: Where all of it ran.
    """
    encoder = plan.encoder
    own = {standing.name: " ".join(standing.contestant.own) for standing in standings if standing.contestant.own}
    return {
        "dataset": f"{settings.dataset.resolve().name}, {plan.instances:,} instances, {plan.labels:,} labels, "
        f"{len(queries):,} test texts{' (the first)' if settings.limit else ''}, {queries.filtered:,} pairs filtered",
        "encoder": f"{_encoder_name(settings)}, {encoder['pooling']} pooling, {encoder['max_length']} tokens, labels "
        f"{encoder['label_max_length']}, {plan.dim} dimensions, SHA-256 {plan.encoder_sha256[:_DIGITS]}",
        "command": _command(settings),
        **{f"variant {name}": flags for name, flags in own.items()},
        "seeds": ", ".join(map(str, settings.seeds)),
        "propensity": "A {:g}, B {:g}".format(*settings.propensity),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": str(torch.get_num_threads()),
        "versions": f"recollect {importlib.metadata.version('recollect')}, torch {torch.__version__}",
    }


def _command(settings: CompareSettings) -> str:
    """What was typed, in names for paths."""
    words = ["recollect compare", settings.dataset.resolve().name, f"--methods {','.join(settings.methods)}"]
    if settings.variants is not None:
        words.append(f"--variants {settings.variants.name}")
    words.append(f"--seeds {','.join(map(str, settings.seeds))}")
    for name in (*SHARED, "metric", "propensity", "limit"):
        if name in settings.model_fields_set:
            value = _encoder_name(settings) if name == "encoder" else getattr(settings, name)
            told = ",".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(f"--{name.replace('_', '-')} {told}")
    return " ".join(words)


def _encoder_name(settings: CompareSettings) -> str:
    """The encoder's name, or that of its folder; of a run's checkpoint, the run's."""
    path = Path(settings.encoder)
    if not path.is_dir():
        return settings.encoder
    path = path.resolve()
    return path.parent.name if path.name == "checkpoint" else path.name
