"""The training loop, top to bottom: mine when due, draw a batch, take its gradient, step; validate, save when due."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from trainer.batches import Batches
from trainer.dataset import LabelSets
from trainer.device_memory import kept_tokens
from trainer.encoder import embed
from trainer.errors import TrainingError
from trainer.gradient_cache import Embedder, Part
from trainer.keys import KeyMaker
from trainer.methods import METHODS
from trainer.negatives import mine
from trainer.objective import Objective
from trainer.randomness import Purpose, generator
from trainer.ranks import Ranks
from trainer.recipe import Recipe
from trainer.run_log import RunLog
from trainer.stopwatch import Stopwatch
from trainer.tokens import Inputs
from trainer.training_state import Learner, Progress, load_state, save_state
from trainer.validation import Validation

# Instances whose vectors are looked at before a checkpoint is kept.
_PROBED = 64
# DEXML: weight decay .01, but none on norms and biases. The clip is the customary one.
_WEIGHT_DECAY, _CLIP = 0.01, 1.0
# Tokens of one micro-batch: enough to fill the cores, few enough to hold little padding.
_MICRO_TOKENS = {"cpu": 2_048, "cuda": 32_768}


@dataclass(frozen=True)
class Task:
    """What there is to learn, and from what.

    Attributes:
        model: What learns: the whole encoder, or an adapter.
        dim: Size of its vectors.
        queries: Its inputs for all instances.
        labels: Its inputs for all labels.
        label_sets: The labels of each instance.
        validation: Which instances are held out, and how they are asked.
        keep: Writes the model's checkpoint; called when it is the best so far.
    """

    model: nn.Module
    dim: int
    queries: Inputs
    labels: Inputs
    label_sets: LabelSets
    validation: Validation
    keep: Callable[[], None]


@dataclass(frozen=True)
class Machine:
    """Where a training runs, which its recipe names too, and how often it saves itself.

    Attributes:
        ranks: The processes that train together.
        device: `cpu` or `cuda`.
        save_minutes: Minutes between two saves of the state.
    """

    ranks: Ranks
    device: str
    save_minutes: float = 5


def train(task: Task, recipe: Recipe, folder: Path, machine: Machine, watch: Stopwatch) -> Progress:
    """Train the task's model, going on from the newest state in `folder` if there is one.

    Args:
        task: What there is to learn.
        recipe: How.
        folder: Run folder; takes `metrics.jsonl` and `state/`.
        machine: Where.
        watch: Told where the time goes.

    Returns:
        Where the training ended, and its best checkpoint.

    Raises:
        TrainingError: If the loss, its gradient or a vector is not finite, or the state cannot be saved or read.
    """
    ranks, device = machine.ranks, machine.device
    torch.manual_seed(int(generator(recipe.seed, Purpose.DROPOUT, ranks.rank).integers(2**62)))
    model = task.model.to(device).train()
    batches = Batches(
        task.label_sets,
        len(task.labels),
        np.flatnonzero(~task.validation.held_out),
        recipe.batch_size,
        recipe.positives,
        recipe.hard_negatives,
        recipe.seed,
    )
    embedder = _embedder(model, task, recipe, machine)
    objective = Objective(METHODS[recipe.method], recipe.temperature, embedder, task.queries, task.labels, ranks)
    keys = KeyMaker(model, task.queries, task.labels, task.dim, device, ranks)
    learner = Learner(model, _optimizer(model), negatives=None, device=device)
    progress = load_state(folder / "state", learner, ranks)
    began, saved = time.monotonic() - progress.seconds, time.monotonic()

    with RunLog(folder, recipe.steps, progress, ranks.first) as log:
        if progress.step == 0:
            with watch("validate"):
                _validate(task, keys, progress, ranks, log)
        while progress.step < recipe.steps:
            step, tick = progress.step, time.monotonic()
            if recipe.mines and (learner.negatives is None or step % recipe.mine_every == 0):
                with watch("mine"):
                    now = keys.at(step)
                    learner.negatives = mine(
                        now.instances, now.labels, task.label_sets, recipe.mine_top, recipe.mine_search, device, ranks
                    )
            with watch("batch"):
                batch = batches.at(step, learner.negatives)
            with watch("gradient"):
                loss = objective.backward(batch)
            with watch("optimizer"):
                norm = _descend(learner, recipe.rate(step))
            if not math.isfinite(loss):
                raise _diverged(f"a loss of {loss}", step, recipe, progress, folder)
            if not math.isfinite(norm):
                raise _diverged(f"a gradient of length {norm}", step, recipe, progress, folder)
            progress.step, progress.seconds = step + 1, time.monotonic() - began
            log.step(loss, recipe.rate(step), len(batch.rows), time.monotonic() - tick)
            if progress.step % batches.per_epoch == 0 or progress.step == recipe.steps:
                with watch("validate"):
                    if not _answers(model, task, device):
                        raise _diverged("vectors that are not", step, recipe, progress, folder)
                    _validate(task, keys, progress, ranks, log)
            if ranks.agree(time.monotonic() - saved >= 60 * machine.save_minutes):
                with watch("save"):
                    save_state(folder / "state", progress, learner, ranks)
                saved = time.monotonic()
    return progress


def _answers(model: nn.Module, task: Task, device: str) -> bool:
    """Whether the last step left weights that still make vectors; its loss was taken before it."""
    model.eval()
    vectors = embed(model, task.queries[:_PROBED], task.dim, device)
    model.train()
    return bool(np.isfinite(vectors).all())


def _validate(task: Task, keys: KeyMaker, progress: Progress, ranks: Ranks, log: RunLog) -> None:
    """Keep the model if it is the best so far; without anything held out, the newest is the best."""
    if task.validation.held_out.any():
        now = keys.at(progress.step)
        score = ranks.agree(task.validation.score(now) if ranks.first else None)
        log.write(validation_ndcg_5=score)
        if progress.best is not None and score <= progress.best:
            return
        progress.best = score
    progress.best_step = progress.step
    if ranks.first:
        task.keep()


def _descend(learner: Learner, rate: float) -> float:
    """One step down the gradient; returns the gradient's length before it was clipped."""
    norm = nn.utils.clip_grad_norm_(learner.model.parameters(), _CLIP)
    for group in learner.optimizer.param_groups:
        group["lr"] = rate
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    return float(norm)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; matrices decay, norms and biases do not."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
        ]
    )


def _embedder(model: nn.Module, task: Task, recipe: Recipe, machine: Machine) -> Embedder:
    """Keep every graph of a batch that is small, and recompute those of a large one."""
    embedder = Embedder(
        model,
        task.dim,
        machine.device,
        autocast=recipe.precision == "bf16",
        micro_tokens=_MICRO_TOKENS[machine.device],
        micro_rows=recipe.micro_batch or 2**31,
        cache=True,
    )
    if recipe.micro_batch > 0:
        return embedder
    sample = Part(task.queries, np.arange(min(recipe.batch_size, len(task.queries))))
    keep = _batch_tokens(task, recipe) / machine.ranks.size <= kept_tokens(embedder, sample)
    return dataclasses.replace(embedder, cache=not keep)


def _batch_tokens(task: Task, recipe: Recipe) -> float:
    """Tokens of a usual batch, its pool of labels included."""
    labels = len(task.labels)
    if recipe.hard_negatives is not None:
        own = len(task.label_sets.indices) / len(task.label_sets)
        pulled = min(recipe.positives or own, own)
        labels = min(labels, round(recipe.batch_size * (pulled + recipe.hard_negatives)))
    return float(recipe.batch_size * task.queries.lengths.mean() + labels * task.labels.lengths.mean())


def _diverged(found: str, step: int, recipe: Recipe, progress: Progress, folder: Path) -> TrainingError:
    kept = f"the checkpoint of step {progress.best_step} is kept in {folder / 'checkpoint'}"
    return TrainingError(
        f"step {step + 1}: expected a finite loss, gradient and vectors, found {found}; {kept}: start again with "
        f"--overwrite and a --learning-rate below {recipe.learning_rate:g}"
    )
