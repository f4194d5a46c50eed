"""`--from RUN`: a training starts from the checkpoint of an earlier run.

The flag stands for `--encoder RUN/checkpoint` and for the settings that belong to this checkpoint. The adapter is part
of the checkpoint. A head is not loaded, because it has weights for the labels of the earlier run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.trainer.errors import TrainingError

# Settings that the checkpoint fixes: it was trained with them.
_FIXED = ("pooling", "max_length", "label_max_length", "query_prompt", "label_prompt")


def start_from(run: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that `--from` stands for.

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
        saved = json.loads(path.read_text(encoding="utf-8"))
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
