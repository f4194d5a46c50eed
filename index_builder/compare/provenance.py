"""Provenance of a comparison: settings, counts, seeds, machine and software versions, but no path of the machine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import torch

from recollect.index_builder.compare.plan import SHARED_FLAGS
from recollect.index_builder.compare.queries import Queries
from recollect.index_builder.compare.results import ContestantResults
from recollect.index_builder.settings import CompareSettings
from recollect.trainer.memory.memory import MemoryPlan

# Number of leading digits of an encoder's SHA-256 in the report: enough to distinguish two encoders.
_DIGEST_DIGITS = 12


def report_title(settings: CompareSettings) -> str:
    return f"Methods compared: {settings.dataset.resolve().name}, {_encoder_name(settings)}"


def provenance(
    settings: CompareSettings, results: list[ContestantResults], queries: Queries, plan: MemoryPlan, device: str
) -> dict[str, str]:
    """List the facts that a reader needs to repeat the comparison.

    Args:
        settings: Settings of the comparison.
        results: Results of all contestants.
        queries: The test queries.
        plan: Plan of the untrained memory, which holds the dataset's counts and the encoder.
        device: Device that trained and measured.
    """
    encoder = plan.encoder
    variants = {each.name: " ".join(each.contestant.own) for each in results if each.contestant.own}
    return {
        "dataset": f"{settings.dataset.resolve().name}, {plan.instances:,} instances, {plan.labels:,} labels, "
        f"{len(queries):,} test texts{' (the first)' if settings.limit else ''}, "
        f"{queries.filtered.nnz:,} pairs filtered",
        "encoder": f"{_encoder_name(settings)}, {encoder['pooling']} pooling, {encoder['max_length']} tokens, labels "
        f"{encoder['label_max_length']}, {plan.dim} dimensions, SHA-256 {plan.encoder_sha256[:_DIGEST_DIGITS]}",
        "command": _command(settings),
        **{f"variant {name}": flags for name, flags in variants.items()},
        "seeds": ", ".join(map(str, settings.seeds)),
        "propensity": "A {:g}, B {:g}".format(*settings.propensity),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": str(torch.get_num_threads()),
        "versions": f"recollect {importlib.metadata.version('recollect')}, torch {torch.__version__}",
    }


def _command(settings: CompareSettings) -> str:
    """The command line of the comparison. The names of files and folders replace their paths."""
    words = ["recollect compare", settings.dataset.resolve().name, f"--methods {','.join(settings.methods)}"]
    if settings.variants is not None:
        words.append(f"--variants {settings.variants.name}")
    words.append(f"--seeds {','.join(map(str, settings.seeds))}")
    for name in (*SHARED_FLAGS, "metric", "limit"):
        if name in settings.model_fields_set:
            value = _encoder_name(settings) if name == "encoder" else getattr(settings, name)
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            words.append(f"--{name.replace('_', '-')} {text}")
    return " ".join(words)


def _encoder_name(settings: CompareSettings) -> str:
    """The encoder's name, or the name of its folder. For the checkpoint of a run, the name of the run."""
    path = Path(settings.encoder)
    if not path.is_dir():
        return settings.encoder
    path = path.resolve()
    return path.parent.name if path.name == "checkpoint" else path.name
