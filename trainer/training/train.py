"""The training loop: cluster and mine when due, draw a batch, compute its gradient, step; validate and save if due."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.trainer.clustering import balanced_clusters
from recollect.trainer.data.split import LabelSets
from recollect.trainer.distributed import Ranks
from recollect.trainer.encoding.encoder import embed
from recollect.trainer.encoding.tokens import Inputs
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.dual_encoder import DualEncoder
from recollect.trainer.methods import METHODS
from recollect.trainer.metrics import propensity_weights
from recollect.trainer.randomness import Purpose, generator
from recollect.trainer.recipe import Recipe
from recollect.trainer.training.batches import Batches
from recollect.trainer.training.gradient_cache import Embedder, Part
from recollect.trainer.training.keys import KeyMaker, Keys
from recollect.trainer.training.memory_check import kept_tokens, trim_heap
from recollect.trainer.training.negatives import HardNegatives, mine
from recollect.trainer.training.objective import Objective
from recollect.trainer.training.run_log import RunLog, Stopwatch
from recollect.trainer.training.training_state import Learner, Progress, load_state, save_state
from recollect.trainer.training.validation import Validation

# Number of instances whose vectors are checked before a checkpoint is saved.
_CHECKED_INSTANCES = 64
# Steps between two calls of `trim_heap`.
_TRIM_EVERY = 64
# Number of tokens in a micro-batch: enough to use all cores, few enough for little padding.
_MICRO_TOKENS = {"cpu": 2_048, "cuda": 32_768}


@dataclass(frozen=True)
class Task:
    """A model and the data to train it on.

    Attributes:
        model: The model to train: the whole encoder, or adapter and head above a frozen one.
        filtered: The labels that are removed from the predictions for each instance. They are never mined.
        save_best: Function that writes the model's checkpoint. It is called when the model is the best so far.
    """

    model: DualEncoder
    queries: Inputs
    labels: Inputs
    label_sets: LabelSets
    filtered: LabelSets
    validation: Validation
    save_best: Callable[[], None]


def train(
    task: Task, recipe: Recipe, folder: Path, ranks: Ranks, watch: Stopwatch, save_minutes: float = 5
) -> Progress:
    """Train a model. Resume from the newest state in `folder`, if there is one.

    Args:
        folder: Run folder, in which `metrics.jsonl` and `state/` are written.

    Returns:
        The progress at the end.

    Raises:
        TrainingError: If the loss, its gradient or a vector is not finite, or the state cannot be saved or read.
    """
    device = recipe.device
    torch.manual_seed(int(generator(recipe.seed, Purpose.DROPOUT, ranks.rank).integers(2**62)))
    method, model = METHODS[recipe.method], task.model.train()
    model.dropout.p = recipe.embedding_dropout
    model.numbers.update({name: torch.tensor(start) for name, start in method.numbers.items()})
    model.to(device)
    if (table := model.table) is not None:
        table.divide(ranks)
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
    embedder = _embedder(model, task, recipe, ranks)
    objective = Objective(method, recipe.options, recipe.temperature, embedder, task.queries, task.labels, ranks)
    keys = KeyMaker(model, task.queries, task.labels, device, ranks, embedder.autocast)
    learner = Learner(model, _optimizer(model, recipe), device)
    progress = load_state(folder / "state", learner, ranks)
    saved = time.monotonic()

    with (
        RunLog(folder, recipe.steps, progress, ranks.first, recipe.max_seconds) as log,
        _matrix_products(recipe.precision),
    ):
        if progress.step == 0:
            with watch("start"):
                tick = time.monotonic()
                _start_head(task, keys, recipe, ranks)
                progress.seconds = ranks.broadcast_object(time.monotonic() - tick)
            with watch("validate"):
                _validate(task, keys, progress, ranks, log)
        while not recipe.ended(progress.step, progress.seconds):
            step, tick = progress.step, time.monotonic()
            epoch, in_epoch = divmod(step, batches.per_epoch)
            if in_epoch == 0 and (clusters := recipe.clusters_at(epoch, batches.per_epoch)):
                with watch("cluster"):
                    learner.clusters = _cluster(task, keys, step, clusters, recipe)
            if recipe.mines_at(step):
                with watch("mine"):
                    learner.negatives = _mine(task, keys, step, recipe, ranks)
            keys.clear()  # this step changes the model
            with watch("batch"):
                batch = batches.at(step, learner.negatives, learner.clusters)
            with watch("gradient"):
                loss = objective.backward(batch)
            with watch("optimizer"):
                rate = recipe.rate(step, progress.seconds)
                norm = _clip(model, recipe.clip_norm or math.inf, ranks)
                _take_step(learner.optimizer, rate)
                if table is not None:
                    table.update(rate * recipe.table_learning_rate / recipe.learning_rate, step)
            if not math.isfinite(loss):
                raise _divergence(f"a loss of {loss}", step, recipe, progress, folder)
            if not math.isfinite(norm):
                raise _divergence(f"a gradient of length {norm}", step, recipe, progress, folder)
            if step % _TRIM_EVERY == 0:
                trim_heap()
            progress.step, progress.seconds = (
                step + 1,
                progress.seconds + ranks.broadcast_object(time.monotonic() - tick),
            )
            last = recipe.ended(progress.step, progress.seconds)
            log.step(loss, rate, len(batch.rows), time.monotonic() - tick, last)
            if progress.step % (recipe.validate_every or batches.per_epoch) == 0 or last:
                with watch("validate"):
                    if not _has_finite_vectors(model, task, device):
                        raise _divergence("vectors that are not finite", step, recipe, progress, folder)
                    _validate(task, keys, progress, ranks, log)
            if ranks.broadcast_object(time.monotonic() - saved >= 60 * save_minutes):
                with watch("save"):
                    save_state(folder / "state", progress, learner, ranks)
                saved = time.monotonic()
    return progress


@contextlib.contextmanager
def _matrix_products(precision: str) -> Iterator[None]:
    """Let the matrix products of this block use TF32, if the recipe asks for it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _mine(task: Task, keys: KeyMaker, step: int, recipe: Recipe, ranks: Ranks) -> HardNegatives:
    now, excluded = _to_search(task, keys, step), task.label_sets.union(task.filtered, len(task.labels))
    return mine(now.instances.own, now.labels, excluded, recipe.mine_top, recipe.mine_search, recipe.device, ranks)


def _start_head(task: Task, keys: KeyMaker, recipe: Recipe, ranks: Ranks) -> None:
    """Initialise the head from the vectors below it, without the held-out instances."""
    model = task.model
    if (head := model.head) is None:
        return
    model.head = None
    below = keys.at(0)
    model.head = head
    keys.clear()
    values = task.label_sets.where(~task.validation.held_out).to_csr(len(task.labels))
    head.start(below.labels, below.instances, values, recipe.seed)
    ranks.broadcast(head.state_dict().values())  # rounding must not give ranks different weights


def _cluster(task: Task, keys: KeyMaker, step: int, clusters: int, recipe: Recipe) -> Int[np.ndarray, " instance"]:
    """Return the cluster of each instance, -1 for a held-out one."""
    numbers, rows = np.full(len(task.label_sets), -1, dtype=np.int32), np.flatnonzero(~task.validation.held_out)
    random = generator(recipe.seed, Purpose.CLUSTERS, step)
    numbers[rows] = balanced_clusters(_to_search(task, keys, step).instances, rows, clusters, random)
    return numbers


def _to_search(task: Task, keys: KeyMaker, step: int) -> Keys:
    """Return the part of the keys by which queries are clustered and negatives are mined."""
    now, head = keys.at(step), task.model.head
    return now if head is None else now.part(head.search_view())


def _label_weights(task: Task, recipe: Recipe) -> Float[np.ndarray, " label"] | None:
    """Return the weights with which positives are drawn: higher for labels that are rare in training."""
    if recipe.positive_sampling == "uniform":
        return None
    in_training = ~task.validation.held_out
    counts = np.bincount(task.label_sets.where(in_training).indices, minlength=len(task.labels))
    return propensity_weights(counts, int(in_training.sum()), *recipe.propensity)


def _has_finite_vectors(model: DualEncoder, task: Task, device: str) -> bool:
    """Check some vectors after the last step. The loss of this step was computed before the weights changed."""
    model.eval()
    vectors = embed(model, task.queries[:_CHECKED_INSTANCES], model.key_dim, device)
    model.train()
    return bool(np.isfinite(vectors).all())


def _validate(task: Task, keys: KeyMaker, progress: Progress, ranks: Ranks, log: RunLog) -> None:
    """Save the model if it is as good as the best so far. Without held-out instances, the newest model is the best."""
    if len(task.validation.rows):
        now = keys.at(progress.step)
        score = ranks.broadcast_object(task.validation.score(now))  # rounding must not give ranks different scores
        log.write(validation_ndcg_5=score, seconds=progress.seconds)
        if progress.best is not None and score < progress.best:
            return
        progress.best = score
    progress.best_step = progress.step
    with contextlib.nullcontext() if task.model.table is None else task.model.table.whole():
        if ranks.first:
            task.save_best()


def _clip(model: DualEncoder, longest: float, ranks: Ranks) -> float:
    """Shorten the gradient to the given length. Return its length before."""
    weights: list[Tensor] = list(model.parameters())
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if model.table is not None:
        own = model.table.rows
        assert own.grad is not None
        weights.append(own)
        norm = torch.hypot(norm, ranks.all_reduce_sum(own.grad.norm() ** 2).sqrt())
    nn.utils.clip_grads_with_norm_(weights, longest, norm)
    return float(norm)


def _take_step(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Update the weights, and remove their gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"]
    optimizer.step()
    optimizer.zero_grad()


def _optimizer(model: DualEncoder, recipe: Recipe) -> torch.optim.Optimizer:
    """Create AdamW.

    Only matrices have weight decay (DEXML), and no lookup tables but those with one vector for each label (UniDEC). A
    head's learning rate differs from the encoder's.
    """
    of_head, lookups = set(model.head.parameters()) if model.head else set(), set(model.lookups())
    plain = lookups - set(model.head.label_tables() if model.head else [])
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for weight in model.parameters():
        if weight.requires_grad and weight.numel():
            own = recipe.table_learning_rate if weight in lookups else recipe.head_learning_rate
            factor = own / recipe.learning_rate if weight in of_head else 1.0
            decay = 0.0 if weight in plain or weight.ndim < 2 else recipe.weight_decay
            groups.setdefault((factor, decay), []).append(weight)
    return torch.optim.AdamW(
        [
            {"params": weights, "rate_factor": factor, "weight_decay": decay}
            for (factor, decay), weights in groups.items()
        ],
        fused=True,  # a table of token vectors takes 17 ms instead of 130 ms a step
    )


def _embedder(model: DualEncoder, task: Task, recipe: Recipe, ranks: Ranks) -> Embedder:
    """Create the embedder.

    It keeps the autograd graphs of a small batch, and uses the gradient cache for a large batch.
    """
    embedder = Embedder(
        model,
        recipe.device,
        autocast=recipe.precision == "bf16",
        micro_tokens=_MICRO_TOKENS[recipe.device],
        micro_rows=recipe.micro_batch or 2**31,
        cache=True,
    )
    if recipe.micro_batch > 0:
        return embedder
    sample = Part(task.queries, np.arange(min(recipe.batch_size, len(task.queries))))
    keep = _batch_tokens(task, recipe) / ranks.size <= kept_tokens(embedder, sample)
    return dataclasses.replace(embedder, cache=not keep)


def _batch_tokens(task: Task, recipe: Recipe) -> float:
    """Return the tokens of an average batch, including its pool of labels."""
    labels = len(task.labels) if task.model.table is None else 0  # a table has no tokens
    if recipe.hard_negatives is not None:
        own = len(task.label_sets.indices) / len(task.label_sets)
        drawn = min(recipe.positives or own, own)
        labels = min(labels, round(recipe.batch_size * (drawn + recipe.hard_negatives)))
    return float(recipe.batch_size * task.queries.lengths.mean() + labels * task.labels.lengths.mean())


def _divergence(found: str, step: int, recipe: Recipe, progress: Progress, folder: Path) -> TrainingError:
    kept = f"the checkpoint of step {progress.best_step} is kept in {folder / 'checkpoint'}"
    return TrainingError(
        f"step {step + 1}: expected a finite loss, gradient and vectors, found {found}; {kept}: start again with "
        f"--overwrite and a --learning-rate below {recipe.learning_rate:g}"
    )
