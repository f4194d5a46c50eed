"""The ranker's folder in a memory.

memory/ranker/   ranker.json    the model, as a bundle contains it; absent if the ranker does not help
                 held_out.npz   logits of held-out texts, from models that were fitted without them
                 report.json    the gains, and the memory for which the ranker was fitted
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from typing import Any

import numpy as np

from recollect.index_builder.errors import BuildError
from recollect.index_builder.ranking.calibrate import HeldOut
from recollect.service.bundle.files import RANKER
from recollect.service.files import write_json, write_text
from recollect.service.ranking.model import RankerFile
from recollect.trainer.memory.memory import Memory

_FOLDER, _HELD_OUT, _REPORT = "ranker", "held_out.npz", "report.json"


def write_ranker(memory: Memory, ranker: RankerFile | None, held_out: HeldOut, report: dict[str, Any]) -> None:
    """Replace the ranker of a memory; None removes the model and keeps the report.

    The new folder is complete before it replaces the previous one.
    """
    folder, incoming = memory.folder / _FOLDER, memory.folder / f".{_FOLDER}-incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    if ranker is not None:
        write_text(incoming / RANKER, ranker.model_dump_json() + "\n")
        np.savez(incoming / _HELD_OUT, **vars(held_out))
    write_json(incoming / _REPORT, report | {"fitted_for": fitted_for(memory)})
    shutil.rmtree(folder, ignore_errors=True)
    incoming.rename(folder)


def has_ranker(memory: Memory) -> bool:
    return (memory.folder / _FOLDER / RANKER).is_file()


def read_ranker(memory: Memory) -> RankerFile:
    """Read the ranker of a memory that has one.

    Raises:
        BuildError: If a file is damaged, or the ranker was fitted for another memory or for other defaults.
    """
    folder = memory.folder / _FOLDER
    try:
        ranker = RankerFile.model_validate_json((folder / RANKER).read_bytes())
        found = json.loads((folder / _REPORT).read_text(encoding="utf-8"))["fitted_for"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise BuildError(f"{folder}: expected a ranker, found: {reason}; run `recollect rank` again") from None
    expected = fitted_for(memory)
    if found != expected:
        saved = found if isinstance(found, dict) else {}
        differs = [name for name in saved | expected if saved.get(name) != expected.get(name)]
        raise BuildError(
            f"{folder}: expected a ranker of this memory, found one that differs in {', '.join(differs)}; "
            "run `recollect rank` again, or build with --rank off"
        )
    return ranker


def read_held_out(memory: Memory) -> HeldOut:
    """Read the logits of held-out texts of a memory that has a ranker.

    Raises:
        BuildError: If the file is damaged.
    """
    path = memory.folder / _FOLDER / _HELD_OUT
    with contextlib.suppress(OSError, ValueError, KeyError), np.load(path, allow_pickle=False) as saved:
        held_out = HeldOut(*(saved[name] for name in ("logit", "hit", "sizes")))
        if held_out.logit.shape == held_out.hit.shape and len(held_out.logit) == len(held_out.sizes):
            return held_out
    raise BuildError(f"{path}: expected the logits of held-out texts, found another file; run `recollect rank` again")


def fitted_for(memory: Memory) -> dict[str, Any]:
    """The properties of a memory on which the features depend."""
    plan, distilled = memory.plan, memory.distilled
    return {
        "dataset_sha256": plan.dataset_sha256,
        "encoder_sha256": plan.encoder_sha256,
        **({} if distilled is None else {"query_vectors_sha256": hashlib.sha256(distilled.data).hexdigest()}),
        **{name: float(value) for name, value in memory.defaults.items()},
    }
