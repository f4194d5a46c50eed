"""What a run folder holds, and whether a new call of `recollect train` may go on with it.

run/   training.json   the recipe, and whether the training is done
       metrics.jsonl   loss, speed and validation as it went; tensorboard/ the same, where that is installed
       checkpoint/     the best encoder so far
       state/          while it trains: what `--resume` goes on from
       frozen/         while an adapter trains: the frozen encoder's vectors, a memory of their own
       memory/         keys and values, once the training is done
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint import encoder_digest, load_checkpoint, recover_checkpoint
from trainer.errors import EncoderError, MemoryFolderError, TrainingError
from trainer.files import write_json
from trainer.memory import MemoryPlan, check_same, saved_plan
from trainer.recipe import Recipe
from trainer.training_state import Progress

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Finished:
    """How a training ended.

    Attributes:
        progress: Where it stands.
        peak_memory_bytes: The most memory that the process held.
        trainable_parameters: Numbers that gradients moved.
    """

    progress: Progress
    peak_memory_bytes: int
    trainable_parameters: int

    def measured(self) -> dict[str, float]:
        return {
            "seconds": self.progress.seconds,
            "peak_memory_bytes": self.peak_memory_bytes,
            "trainable_parameters": self.trainable_parameters,
        }


class RunFolder:
    """The paths of a run, and what they say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint, self.memory = path / "checkpoint", path / "memory"
        self.state, self.frozen = path / "state", path / "frozen"
        self._training = path / "training.json"
        logs = (path / "metrics.jsonl", path / "tensorboard")
        self._own = (self.checkpoint, self.memory, self.state, self.frozen, *logs)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second `recollect train` out, and name the folder where a full disk names none."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise MemoryFolderError(
                f"{self.path}: another `recollect train` writes here; wait for it, or choose another --out"
            ) from None
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise
        finally:
            os.close(descriptor)

    def begin_training(self, recipe: Recipe, resume: bool, overwrite: bool) -> bool:
        """Make way for a training, or let one that was interrupted go on.

        Returns:
            Whether there is anything left to train.

        Raises:
            TrainingError: If the folder holds another training, one that is to be resumed but was not asked to be, or
                what no run is known to have made.
            MemoryFolderError: If it holds a memory that was made without training.
        """
        if overwrite:
            self._clear()
        saved = self.training()
        if saved is None:
            if saved_plan(self.memory) is not None:
                raise MemoryFolderError(
                    f"{self.path}: expected no memory here, found one made without training; choose another --out, or "
                    "replace it with --overwrite"
                )
            self._refuse_unknown()
            self.write_training(recipe, None)
            return True
        if differs := recipe.differences(saved["recipe"], trained=saved["done"]):
            raise TrainingError(
                f"{self.path}: expected this training, found one that differs in {', '.join(differs)}; go on with the "
                "same settings, choose another --out, or replace it with --overwrite"
            )
        recover_checkpoint(self.checkpoint)
        if saved["done"]:
            return False
        if not resume and self.state.is_dir():
            raise TrainingError(
                f"{self.path}: expected no unfinished training, found one; go on with --resume, or start again with "
                "--overwrite"
            )
        return True

    def begin_untrained(self, plan: MemoryPlan, overwrite: bool) -> bool:
        """Make way for a memory without training; returns whether the folder holds this very memory, whole or begun.

        Raises:
            MemoryFolderError: If it holds another, or a training.
            TrainingError: If it holds what no run is known to have made.
        """
        if overwrite:
            self._clear()
        if self.training() is not None:
            raise MemoryFolderError(
                f"{self.path}: expected no training here, found one; choose another --out, or replace it with "
                "--overwrite"
            )
        saved = saved_plan(self.memory)
        if saved is None:
            self._refuse_unknown(plan)
            return False
        check_same(self.path, plan, saved)
        return True

    def training(self) -> dict[str, Any] | None:
        """The recipe of the training that the folder holds, and how it ended; None if it holds none.

        Raises:
            TrainingError: If that cannot be read.
        """
        if not self._training.is_file():
            return None
        try:
            saved: dict[str, Any] = json.loads(self._training.read_text(encoding="utf-8"))
            if (version := saved["format_version"]) != _FORMAT_VERSION:
                raise ValueError(f"format_version {version}")
            saved["recipe"]["seed"], saved["done"]
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(
                f"{self._training}: expected a recipe of format_version {_FORMAT_VERSION}, found: {error!r}; "
                "start again with --overwrite"
            ) from None
        return saved

    def is_trained(self) -> bool:
        """Whether the training that the folder holds is done."""
        saved = self.training()
        return saved is not None and bool(saved["done"])

    def write_training(self, recipe: Recipe, finished: Finished | None) -> None:
        """Note a training as begun, or as done when it has `finished`."""
        write_json(
            self._training,
            {
                "format_version": _FORMAT_VERSION,
                "recipe": recipe.as_json(),
                "done": finished is not None,
                "progress": finished and dataclasses.asdict(finished.progress),
                "measured": finished and finished.measured(),
            },
        )

    def drop_unfinished(self) -> None:
        """Remove what only an unfinished run needs; a kill may have left it beside a finished one."""
        for folder in (self.state, self.frozen):
            shutil.rmtree(folder, ignore_errors=True)

    def _refuse_unknown(self, plan: MemoryPlan | None = None) -> None:
        """Refuse to write where something lies that no run left, as far as one can tell.

        Args:
            plan: Of the memory that is to be made; a kill before it is begun leaves its encoder's checkpoint alone.
        """
        found = [path for path in self._own if path.exists()]
        if found and not (found == [self.checkpoint] and plan is not None and self._keeps_encoder_of(plan)):
            raise TrainingError(
                f"{self.path}: expected a run or nothing, found {', '.join(path.name for path in found)} of unknown "
                "origin; choose another --out, or replace it with --overwrite"
            )

    def _keeps_encoder_of(self, plan: MemoryPlan) -> bool:
        try:
            return encoder_digest(load_checkpoint(self.checkpoint, "cpu")) == plan.encoder_sha256
        except EncoderError:
            return False

    def _clear(self) -> None:
        for path in (self._training, *self._own):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
