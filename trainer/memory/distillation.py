"""The record of a distilled query encoder: `query_encoder/distillation.json` in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recollect.core.system.files import read_json, write_json
from recollect.trainer.errors import TrainingError
from recollect.trainer.held_out import HeldOutTexts

# The folder of the query encoder in a run folder.
QUERY_ENCODER = "query_encoder"
_FORMAT_VERSION = 2


def read_distillation(run: Path) -> dict[str, Any] | None:
    """Read the record of a run. None if the run has no distilled query encoder.

    Raises:
        TrainingError: If the file is missing or invalid.
    """
    folder = run / QUERY_ENCODER
    if not folder.is_dir():
        return None
    path = folder / "distillation.json"
    try:
        saved = read_versioned(path, _FORMAT_VERSION)
        saved["teacher_sha256"], HeldOutTexts.of_json(saved["held_out"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path}: expected a finished distillation, found: {error!r}; remove {folder}, then run the same "
            "`recollect train` again"
        ) from None
    return saved


def write_distillation(run: Path, content: dict[str, Any]) -> None:
    write_json(run / QUERY_ENCODER / "distillation.json", {"format_version": _FORMAT_VERSION, **content})


def read_versioned(path: Path, format_version: int) -> dict[str, Any]:
    """Read a JSON file of this format; an OSError, a ValueError, a KeyError or a TypeError if it is another one."""
    saved: dict[str, Any] = read_json(path)
    if (version := saved["format_version"]) != format_version:
        raise ValueError(f"format_version {version}")
    return saved
