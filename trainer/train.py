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
from jaxtyping import Float, Int
from torch import nn

from trainer.batches import Batches
from trainer.clustering import balanced_clusters
from trainer.curriculum import Curriculum
from trainer.data.split import LabelSets
from trainer.device_memory import kept_tokens
from trainer.encoder import embed
from trainer.errors import TrainingError
from trainer.gradient_cache import Embedder, Part
from trainer.heads.head import Refinement
from trainer.keys import KeyMaker
from trainer.methods import METHODS
from trainer.metrics import propensity_weights
from trainer.negatives import HardNegatives, mine
from trainer.objective import Objective
from trainer.randomness import Purpose, generator
from trainer.ranks import Ranks
from trainer.recipe import Recipe
from trainer.room import trim_heap
from trainer.run_log import RunLog
from trainer.stopwatch import Stopwatch
from trainer.tokens import Inputs
from trainer.training_state import Learner, Progress, load_state, save_state
from trainer.validation import Validation

# Instances whose vectors are looked at before a checkpoint is kept.
_PROBED = 64
# DEXML: weight decay .01, but none on norms and biases. The clip is the customary one.
_WEIGHT_DECAY, _CLIP = 0.01, 1.0
# Steps between two looks for memory to give back.
_TRIM_EVERY = 64
# A and B of the propensity model, as most datasets have them.
_PROPENSITY = 0.55, 1.5
# Tokens of one micro-batch: enough to fill the cores, few enough to hold little padding.
_MICRO_TOKENS = {"cpu": 2_048, "cuda": 32_768}


@dataclass(frozen=True)
class Task:
    """What there is to learn, and from what.

    Attributes:
        model: What learns: the whole encoder, or what stands on a frozen one.
        queries: Its inputs for all instances.
        labels: Its inputs for all labels.
        label_sets: The labels of each instance.
        validation: Which instances are held out, and how they are asked.
        keep: Writes the model's checkpoint; called when it is the best so far.
    """

    model: Refinement
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
        _label_weights(task, recipe),
    )
    embedder = _embedder(model, task, recipe, machine)
    objective = Objective(
        METHODS[recipe.method], recipe.options, recipe.temperature, embedder, task.queries, task.labels, ranks
    )
    keys = KeyMaker(model, task.queries, task.labels, device, ranks, embedder.autocast)
    curriculum = Curriculum(recipe.clusters, recipe.cluster_from, recipe.cluster_every, fewest=batches.per_epoch)
    learner = Learner(model, _optimizer(model, recipe), device)
    progress = load_state(folder / "state", learner, ranks)
    saved = time.monotonic()

    with RunLog(folder, recipe.steps, progress, ranks.first) as log:
        if progress.step == 0:
            with watch("start"):
                tick = time.monotonic()
                _start_head(task, keys, recipe, machine)
                progress.seconds = ranks.agree(time.monotonic() - tick)
            with watch("validate"):
                _validate(task, keys, progress, ranks, log)
        while not recipe.ended(progress.step, progress.seconds):
            step, tick = progress.step, time.monotonic()
            if step % batches.per_epoch == 0 and (clusters := curriculum.due(step // batches.per_epoch)):
                with watch("cluster"):
                    learner.clusters = _cluster(task, keys, step, clusters, recipe, machine)
            if recipe.mines and (learner.negatives is None or step % recipe.mine_every == 0):
                with watch("mine"):
                    learner.negatives = _mine(task, keys, step, recipe, machine)
            keys.forget()  # this step changes the model
            with watch("batch"):
                batch = batches.at(step, learner.negatives, learner.clusters)
            with watch("gradient"):
                loss = objective.backward(batch)
            with watch("optimizer"):
                rate = recipe.rate(step, progress.seconds)
                norm = _descend(learner, rate)
            if not math.isfinite(loss):
                raise _diverged(f"a loss of {loss}", step, recipe, progress, folder)
            if not math.isfinite(norm):
                raise _diverged(f"a gradient of length {norm}", step, recipe, progress, folder)
            if step % _TRIM_EVERY == 0:
                trim_heap()
            progress.step, progress.seconds = step + 1, progress.seconds + ranks.agree(time.monotonic() - tick)
            last = recipe.ended(progress.step, progress.seconds)
            log.step(loss, rate, len(batch.rows), time.monotonic() - tick, last)
            if progress.step % batches.per_epoch == 0 or last:
                with watch("validate"):
                    if not _answers(model, task, device):
                        raise _diverged("vectors that are not", step, recipe, progress, folder)
                    _validate(task, keys, progress, ranks, log)
            if ranks.agree(time.monotonic() - saved >= 60 * machine.save_minutes):
                with watch("save"):
                    save_state(folder / "state", progress, learner, ranks)
                saved = time.monotonic()
    return progress


def _mine(task: Task, keys: KeyMaker, step: int, recipe: Recipe, machine: Machine) -> HardNegatives:
    now, where = keys.at(step), (machine.device, machine.ranks)
    return mine(now.instances, now.labels, task.label_sets, recipe.mine_top, recipe.mine_search, *where)


def _start_head(task: Task, keys: KeyMaker, recipe: Recipe, machine: Machine) -> None:
    """Let a method's head begin with the vectors below it; what is held out has no part in that."""
    model, ranks = task.model, machine.ranks
    if (head := model.head) is None:
        return
    model.head = None
    below = keys.at(0)
    model.head = head
    keys.forget()
    instances = ranks.join_arrays(below.instances, len(task.label_sets), machine.device)
    values = task.label_sets.where(~task.validation.held_out).to_csr(len(task.labels))
    head.start(below.labels, instances, values, recipe.seed)
    ranks.spread(head.state_dict().values())  # so that rounding cannot make ranks differ in what means what


def _cluster(
    task: Task, keys: KeyMaker, step: int, clusters: int, recipe: Recipe, machine: Machine
) -> Int[np.ndarray, " instance"]:
    """The cluster of each instance to train on, -1 for all others; the first rank, which has all keys, finds them."""
    now, ranks = keys.at(step), machine.ranks
    numbers = np.full(len(task.label_sets), -1, dtype=np.int32)
    if ranks.first:
        rows = np.flatnonzero(~task.validation.held_out)
        numbers[rows] = balanced_clusters(now.joined, rows, clusters, generator(recipe.seed, Purpose.CLUSTERS, step))
    agreed: np.ndarray = ranks.agree(numbers)
    return agreed


def _label_weights(task: Task, recipe: Recipe) -> Float[np.ndarray, " label"] | None:
    """By how much positives are drawn the more often, the rarer their label is among the instances to train on."""
    if recipe.positive_sampling == "uniform":
        return None
    taught = ~task.validation.held_out
    counts = np.bincount(task.label_sets.where(taught).indices, minlength=len(task.labels))
    return propensity_weights(counts, int(taught.sum()), *_PROPENSITY)


def _answers(model: Refinement, task: Task, device: str) -> bool:
    """Whether the last step left weights that still make vectors; its loss was taken before it."""
    model.eval()
    vectors = embed(model, task.queries[:_PROBED], model.key_dim, device)
    model.train()
    return bool(np.isfinite(vectors).all())


def _validate(task: Task, keys: KeyMaker, progress: Progress, ranks: Ranks, log: RunLog) -> None:
    """Keep the model if it is the best so far; without anything held out, the newest is the best."""
    if task.validation.held_out.any():
        now = keys.at(progress.step)
        score = ranks.agree(task.validation.score(now) if ranks.first else None)
        log.write(validation_ndcg_5=score, seconds=progress.seconds)
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
        group["lr"] = rate * group["pace"]
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    return float(norm)


def _optimizer(model: Refinement, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW; matrices decay, norms, biases and what a head looks up do not; heads have a pace of their own."""
    above, lookups = (set(model.head.parameters()), set(model.head.lookups())) if model.head else (set(), set())
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for weight in model.parameters():
        if weight.requires_grad and weight.numel():
            pace = recipe.pace(weight in lookups) if weight in above else 1.0
            decay = 0.0 if weight in lookups or weight.ndim < 2 else _WEIGHT_DECAY
            groups.setdefault((pace, decay), []).append(weight)
    return torch.optim.AdamW(
        [{"params": weights, "pace": pace, "weight_decay": decay} for (pace, decay), weights in groups.items()]
    )


def _embedder(model: Refinement, task: Task, recipe: Recipe, machine: Machine) -> Embedder:
    """Keep every graph of a batch that is small, and recompute those of a large one."""
    embedder = Embedder(
        model,
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
