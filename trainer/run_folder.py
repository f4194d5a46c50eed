"""The run folder, and the checks whether `recollect train` may write into it.

run/   training.json   the recipe, and whether the training is finished
       metrics.jsonl   loss, speed and validation scores over time
       tensorboard/    the same, if TensorBoard is installed
       checkpoint/     the best encoder so far
       state/          during training: the state for `--resume`
       tokens/         during the training of an encoder by several processes: the token ids of all texts
       frozen/         with an adapter: the frozen encoder's vectors, as a memory folder, for `--vectors`
       memory/         keys and values, after training
       query_encoder/  with `--query-encoder static`: the distilled encoder of queries, and `distillation.json`
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.core.system.files import write_json
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint, recover_checkpoint
from recollect.trainer.errors import EncoderError, MemoryFolderError, TrainingError
from recollect.trainer.memory.distillation import QUERY_ENCODER, read_versioned
from recollect.trainer.memory.memory import MemoryPlan, check_same_plan, saved_plan
from recollect.trainer.recipe import Recipe
from recollect.trainer.training.training_state import Progress

_FORMAT_VERSION = 2


class RunFolder:
    """The paths of a run folder, and the recipe in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint, self.memory = path / "checkpoint", path / "memory"
        self.state, self.frozen, self.tokens = path / "state", path / "frozen", path / "tokens"
        self.query_encoder = path / QUERY_ENCODER
        self._training = path / "training.json"
        logs = (path / "metrics.jsonl", path / "tensorboard")
        self._run_paths = (
            self.checkpoint,
            self.memory,
            self.query_encoder,
            self.state,
            self.frozen,
            self.tokens,
            *logs,
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against a second `recollect train`, and add its path to errors without a file name.

        Raises:
            MemoryFolderError: If another `recollect train` holds the lock.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise MemoryFolderError(
                f"{self.path}: another `recollect train` writes here; wait until it ends, or choose another --out"
            ) from None
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise
        finally:
            os.close(descriptor)

    def begin_training(self, recipe: Recipe, resume: bool, overwrite: bool) -> bool:
        """Prepare the folder for a new training or for continuing an interrupted one.

        Args:
            resume: Allow an unfinished training with the same recipe to continue.
            overwrite: Remove the files of any previous run.

        Returns:
            Whether the training is not finished yet.

        Raises:
            TrainingError: If the folder holds another training, an unfinished training without `resume`, or files of
                unknown origin.
            MemoryFolderError: If the folder holds a memory that was written without training.
        """
        if overwrite:
            self._clear()
        saved = self.training()
        if saved is None:
            if saved_plan(self.memory) is not None:
                raise MemoryFolderError(
                    f"{self.path}: expected no memory here, found one written without training; choose another --out, "
                    "or replace it with --overwrite"
                )
            self._check_origin()
            self.write_training(recipe)
            return True
        if differs := recipe.differences(saved["recipe"], trained=saved["done"]):
            raise TrainingError(
                f"{self.path}: expected this training, found one that differs in {', '.join(differs)}; continue with "
                "the same settings, choose another --out, or replace it with --overwrite"
            )
        recover_checkpoint(self.checkpoint)
        if saved["done"]:
            return False
        if not resume and self.state.is_dir():
            raise TrainingError(
                f"{self.path}: expected no unfinished training, found one; continue with --resume, or start again "
                "with --overwrite"
            )
        return True

    def begin_untrained(self, plan: MemoryPlan, overwrite: bool) -> bool:
        """Prepare the folder for a memory without training.

        Args:
            overwrite: Remove the files of any previous run.

        Returns:
            Whether the folder already holds this memory, finished or unfinished.

        Raises:
            MemoryFolderError: If the folder holds another memory or a training.
            TrainingError: If the folder holds files of unknown origin.
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
            self._check_origin(plan)
            return False
        check_same_plan(self.path, plan, saved)
        return True

    def training(self) -> dict[str, Any] | None:
        """The contents of `training.json`: the recipe and its result. None if the folder holds no training.

        Raises:
            TrainingError: If the file is invalid.
        """
        if not self._training.is_file():
            return None
        try:
            saved: dict[str, Any] = read_versioned(self._training, _FORMAT_VERSION)
            saved["recipe"]["seed"], saved["done"]
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(
                f"{self._training}: expected a recipe of format_version {_FORMAT_VERSION}, found: {error!r}; "
                "start again with --overwrite"
            ) from None
        return saved

    def is_trained(self) -> bool:
        """Whether the folder holds a finished training."""
        saved = self.training()
        return saved is not None and bool(saved["done"])

    def write_training(
        self,
        recipe: Recipe,
        progress: Progress | None = None,
        measured: dict[str, float] | None = None,
        activities: dict[str, float] | None = None,
    ) -> None:
        """Write `training.json`.

        Args:
            progress: Final progress; None for an unfinished training.
        """
        write_json(
            self._training,
            {
                "format_version": _FORMAT_VERSION,
                "recipe": recipe.as_json(),
                "done": progress is not None,
                "progress": progress and dataclasses.asdict(progress),
                "measured": measured,
                "activities": activities,
            },
        )

    def remove_unfinished(self) -> None:
        """Remove the folders that only an unfinished run needs. A killed run may have left them."""
        for folder in (self.state, self.tokens):
            shutil.rmtree(folder, ignore_errors=True)

    def _check_origin(self, plan: MemoryPlan | None = None) -> None:
        """Check that the folder holds no files of unknown origin.

        Args:
            plan: Plan of the new memory. A checkpoint of its encoder without a memory is allowed: a run that was killed
                before it began the memory leaves one, with an adapter or a head also the vectors below them.
        """
        found = [path for path in self._run_paths if path.exists()]
        unfinished = plan is not None and {*found} <= {self.checkpoint, self.frozen} and self._has_checkpoint_of(plan)
        if found and not unfinished:
            names = ", ".join(path.name for path in found)
            raise TrainingError(
                f"{self.path}: expected a run folder or an empty folder, found {names} of unknown origin; "
                "choose another --out, or replace it with --overwrite"
            )

    def _has_checkpoint_of(self, plan: MemoryPlan) -> bool:
        try:
            return encoder_digest(load_checkpoint(self.checkpoint, "cpu")) == plan.encoder_sha256
        except EncoderError:
            return False

    def _clear(self) -> None:
        for path in (self._training, *self._run_paths):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
