"""`recollect plan`: the memory and the hours of a training, before the training."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.service.memory_use import free_bytes
from recollect.trainer.data.dataset import Dataset, open_named
from recollect.trainer.data.split import Split
from recollect.trainer.distributed import require_single_process
from recollect.trainer.encoding.checkpoint import load_encoder
from recollect.trainer.encoding.encoder import Encoder, choose_device
from recollect.trainer.errors import TrainingError
from recollect.trainer.heads.centroids import Centroids
from recollect.trainer.heads.head import Head
from recollect.trainer.heads.prototypes import Prototypes
from recollect.trainer.methods import METHODS
from recollect.trainer.plan.hours import estimate_hours, measure_search
from recollect.trainer.plan.memory import Part, Sizes, parts, peak_bytes
from recollect.trainer.plan.settings import PlanSettings
from recollect.trainer.plan.trial import Trial, entries_bytes, run_trial
from recollect.trainer.recipe import Recipe
from recollect.trainer.settings import STATIC
from recollect.trainer.training.memory_check import training_bytes
from recollect.trainer.training.stopwatch import mapped_memory_bytes, peak_memory_bytes
from recollect.trainer.training.validation import hold_out

# Number of texts of each kind whose tokens are counted.
_COUNTED_TEXTS = 2_000


@dataclass(frozen=True)
class Plan:
    """The estimates of a training.

    Attributes:
        recipe: The recipe, whose digests are empty.
        sizes: The sizes of the training.
        device: `cpu` or `cuda`.
        rank_bytes: Peak CPU memory of a rank.
        host_bytes: Peak CPU memory of all ranks on one host. Files that the ranks share count once.
        gpu_bytes: Peak memory of a GPU; 0 on a CPU.
        fixed_bytes: The share of a rank's CPU memory that does not depend on the sizes.
        parts: The other shares.
        hours: Estimated hours of each activity.
    """

    recipe: Recipe
    sizes: Sizes
    device: str
    rank_bytes: int
    host_bytes: int
    gpu_bytes: int
    fixed_bytes: int
    parts: list[Part]
    hours: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        recipe, sizes = self.recipe, self.sizes
        return {
            "device": self.device,
            "ranks": sizes.ranks,
            "instances": sizes.instances,
            "labels": sizes.labels,
            "steps": recipe.steps,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "rank_bytes": self.rank_bytes,
            "host_bytes": self.host_bytes,
            "free_bytes": free_bytes(),
            "gpu_bytes": self.gpu_bytes,
            "fixed_bytes": self.fixed_bytes,
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "hours": self.hours,
            "total_hours": sum(self.hours.values()),
        }


def make_plan(settings: PlanSettings) -> Plan:
    """Estimate a training from its dataset, its flags, and a trial of a few steps.

    Raises:
        DatasetError: If the dataset is missing or invalid.
        EncoderError: If the encoder cannot be loaded or the device is absent.
        TrainingError: If there is no training to plan, or the trial fails.
    """
    require_single_process("recollect plan")
    if settings.best or settings.epochs == 0:
        found = "--best" if settings.best else "--epochs 0"
        raise TrainingError(f"{found}: expected one training to plan, found none or several; omit the flag")
    device = choose_device(settings.device)
    dataset = open_named(settings)
    instances = dataset.read_split("train")
    reading, shared = peak_memory_bytes(), mapped_memory_bytes()
    if len(dataset.labels) < 2 or not len(instances.labels.indices):
        raise TrainingError(f"{settings.dataset}: expected at least two labels, and instances with labels, found fewer")
    name = settings.static_from if settings.encoder == STATIC else settings.encoder
    encoder = load_encoder(name, settings.pooling, settings.max_length, settings.label_max_length, "cpu")
    static = settings.encoder == STATIC or encoder.model.is_static
    held_out = int(hold_out(instances.labels, settings.validation_fraction, settings.seed).sum())

    def recipe_of(rows: int, labels: int, ranks: int, given: PlanSettings) -> Recipe:
        return Recipe.of(given, {}, "", "", rows, labels, device, ranks, static)

    recipe = recipe_of(len(instances) - held_out, len(dataset.labels), settings.gpus, settings)
    tokens = _mean_tokens(settings, encoder, dataset, instances)
    with tempfile.TemporaryDirectory(prefix="recollect-plan-") as folder:
        batch = -(-recipe.batch_size // settings.gpus)
        trial = run_trial(settings, dataset.labels, instances, batch, Path(folder))
    given = {"bank": None, "clusters": None, "cluster_from": 0, "batch_size": batch}
    small = recipe_of(trial.instances, trial.labels, 1, settings.model_copy(update=given))
    sizes_of = _SizesOf(encoder.model.dim, trial, tokens)
    of_trial = sizes_of(small, trial.instances, trial.labels, trial.pairs, trial.text_bytes)
    text_bytes = entries_bytes(dataset.labels) + entries_bytes(instances.entries)
    counts = len(instances), len(dataset.labels), len(instances.labels.indices), text_bytes
    sizes = sizes_of(recipe, *counts)
    speed = measure_search(trial.key_dim, device)
    hours = estimate_hours(recipe, sizes, of_trial, trial, held_out, speed)
    return _plan(recipe, sizes, of_trial, trial, device, hours, reading, shared)


def _plan(
    recipe: Recipe,
    sizes: Sizes,
    of_trial: Sizes,
    trial: Trial,
    device: str,
    hours: dict[str, float],
    reading: int,
    shared: int,
) -> Plan:
    on_gpu = device == "cuda"
    here, then = parts(sizes), parts(of_trial)
    host, host_then = ([part for part in found if not (on_gpu and part.on_gpu)] for found in (here, then))
    fixed = max(0, trial.peak_bytes - peak_bytes(host_then))
    rank = max(reading, fixed + peak_bytes(host))
    shared += sum(part.size_bytes for part in host if part.mapped)
    gpu = 0
    if on_gpu:
        gpu = trial.peak_gpu_bytes - _on_gpu(then) + _on_gpu(here)
    return Plan(recipe, sizes, device, rank, sizes.ranks * rank - (sizes.ranks - 1) * shared, gpu, fixed, host, hours)


def _on_gpu(found: list[Part]) -> int:
    return peak_bytes([part for part in found if part.on_gpu])


@dataclass(frozen=True)
class _SizesOf:
    """Computes the sizes of a training from its recipe and the counts of its dataset.

    Attributes:
        dim: Size of a text vector.
        trial: The measurements of the trial.
        tokens: Mean number of tokens of an instance and of a label; zeros for a frozen encoder.
    """

    dim: int
    trial: Trial
    tokens: tuple[float, float]

    def __call__(self, recipe: Recipe, instances: int, labels: int, pairs: int, text_bytes: int) -> Sizes:
        head, small_head = _head(recipe, self.dim, labels), _head(recipe, self.dim, self.trial.labels)
        views = self.dim if head is None else head.label_views * head.dim
        adapter = recipe.train == "adapter"
        pool, trained = (
            _pool(recipe, instances, labels, pairs),
            self.trial.trained - _weights(small_head) + _weights(head),
        )
        tables = 0 if head is None else sum(table[0].numel() for table in head.label_tables())
        return Sizes(
            ranks=recipe.ranks,
            instances=instances,
            labels=labels,
            pairs=pairs,
            tokens=0 if adapter else round(self.tokens[0] * instances + self.tokens[1] * labels),
            text_bytes=text_bytes,
            dim=self.dim,
            key_dim=self.trial.key_dim,
            views=views,
            batch=recipe.batch_size,
            pool=pool,
            mined=recipe.mine_top if recipe.mines else 0,
            clustered=recipe.clusters > 0,
            summed=adapter and recipe.label_inputs == "enriched",
            enriched=recipe.label_key_alpha > 0,
            followed=isinstance(head, Prototypes) and isinstance(head.centroids, Centroids),
            head_bytes=0 if head is None else training_bytes(head),
            trained_bytes=4 * trained,
            exchanged_bytes=4 * (trained - (labels - pool) * tables),
        )


def _head(recipe: Recipe, dim: int, labels: int) -> Head | None:
    create = METHODS[recipe.method].head
    if create is None:
        return None
    with torch.device("meta"):  # on `meta`, tensors have a size but no storage
        return create(dim, labels, recipe.options)


def _weights(head: Head | None) -> int:
    return 0 if head is None else sum(weight.numel() for weight in head.parameters())


def _pool(recipe: Recipe, instances: int, labels: int, pairs: int) -> int:
    """Return an upper limit of the labels in the pool of a step."""
    if recipe.hard_negatives is None:
        return labels
    own = pairs / max(1, instances)
    drawn = min(recipe.positives or own, own)
    return min(labels, math.ceil(recipe.batch_size * (drawn + recipe.hard_negatives)))


def _mean_tokens(settings: PlanSettings, encoder: Encoder, dataset: Dataset, instances: Split) -> tuple[float, float]:
    random, means = np.random.default_rng(settings.seed), []
    for texts, length in (
        (instances.entries.texts, settings.max_length),
        (dataset.labels.texts, settings.label_max_length),
    ):
        rows = random.permutation(len(texts))[:_COUNTED_TEXTS]
        means.append(float(np.diff(encoder.tokenise(texts.take(rows), length).starts).mean()))
    return means[0], means[1]
