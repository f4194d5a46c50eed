"""The recipe: everything that decides the trained weights, with every default filled in."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from trainer.errors import TrainingError
from trainer.methods import METHODS, Method, Options
from trainer.negatives import MineSearch
from trainer.settings import TrainSettings

# By what is trained: a frozen encoder's adapter is cheap and starts from nothing, a whole encoder is neither.
_EPOCHS = {"adapter": 15, "full": 3}
_NO_END = 1_000
_LEARNING_RATE = {"adapter": 1e-3, "full": 1e-4}
_BATCH_SIZE = {"adapter": 256, "full": 128}

_WARM_UP_SHARE = 0.1

# These decide the weights while they are made; once they are, it does not matter where one goes on.
_MAKING = ("micro_batch", "ranks", "device")

# NGAME clusters anew every fifth of many epochs; here of few, it is every sixth part of them.
_CLUSTER_EVERY, _CLUSTERINGS = 5, 6
# Queries of a growing cluster, at first; labels that share a free vector.
_FIRST_CLUSTER, _LABELS_PER_FREE = 8, 2

# Pairs of instance and label that brute force goes through in about half a minute on two cores.
_MOST_EXACT_PAIRS = 1 << 31


@dataclass(frozen=True)
class Recipe:
    """How to train on a dataset; two equal recipes make equal weights: on one CPU to the byte, else but for rounding.

    Not so with `max_seconds`: what ends by the clock, ends where the machine has got to.

    Attributes:
        encoder: Its name, pooling and lengths.
        encoder_sha256: Of the weights that training starts from.
        dataset_sha256: Of the labels and instances.
        method: A key of `METHODS`.
        train: `adapter`, on a frozen encoder, or `full`.
        steps: Optimizer steps in all.
        epochs: Passes over the instances; the last may be cut short by `steps`.
        batch_size: Queries a step.
        learning_rate: Peak, reached after the first tenth of the steps, then falling to 0 in a line.
        temperature: Tau of the loss; 1 for a method that has none.
        hard_negatives: Mined labels a query. None: the pool is the whole label space.
        mine_every: Steps between two minings.
        mine_top: Labels looked at for each instance.
        mine_search: `exact` or `approximate`.
        positives: True labels drawn a query; 0: all.
        validation_fraction: Share of the instances that is held out.
        label_inputs: `text` or `enriched`: what an adapter reads of a label.
        label_key_alpha: Weight of the instances in the label keys that validation asks.
        precision: `fp32` or `bf16`.
        seed: Decides every random draw.
        micro_batch: Rows that go through the model at once, and so share a draw of dropout; 0: as memory allows.
        ranks: Processes that share each step; each has its own dropout.
        device: `cpu` or `cuda`, whose random numbers differ.
        max_seconds: When training ends, if its steps are not done by then; 0: never.
        positive_sampling: `uniform`, or by inverse `propensity`.
        clusters: Of queries, that batches are made of at first; 0: random batches throughout.
        cluster_from: The epoch from which on they are.
        cluster_every: Epochs between two clusterings.
        options: What else the method was told.
    """

    encoder: dict[str, Any]
    encoder_sha256: str
    dataset_sha256: str
    method: str
    train: str
    steps: int
    epochs: int
    batch_size: int
    learning_rate: float
    temperature: float
    hard_negatives: int | None
    mine_every: int
    mine_top: int
    mine_search: MineSearch
    positives: int
    validation_fraction: float
    label_inputs: str
    label_key_alpha: float
    precision: str
    seed: int
    micro_batch: int = 0
    ranks: int = 1
    device: str = "cpu"
    max_seconds: float = 0.0
    positive_sampling: str = "uniform"
    clusters: int = 0
    cluster_from: int = 0
    cluster_every: int = 1
    options: Options = Options()

    @classmethod
    def of(
        cls,
        settings: TrainSettings,
        encoder: dict[str, Any],
        encoder_sha256: str,
        dataset_sha256: str,
        instances: int,
        labels: int,
        device: str,
        ranks: int = 1,
    ) -> Recipe:
        """Fill in what the settings leave open.

        Args:
            settings: What the user asked for.
            encoder: Name, pooling and lengths of the encoder to start from.
            encoder_sha256: Of its weights.
            dataset_sha256: Of the dataset.
            instances: How many there are to train on, validation not counted.
            labels: How many there are.
            device: Where it will be trained.
            ranks: By how many processes.

        Raises:
            TrainingError: If a batch is larger than the dataset, there are more clusters than instances to train on, or
                a bank is larger than the label set.
        """
        method, train = METHODS[settings.method], settings.train
        if settings.batch_size is not None and settings.batch_size > instances:
            raise TrainingError(
                f"--batch-size {settings.batch_size}: expected at most {instances:,}, the instances to train on; "
                "choose a smaller one"
            )
        batch_size = settings.batch_size or min(_BATCH_SIZE[train], instances)
        per_epoch = math.ceil(instances / batch_size)
        epochs = _epochs(settings)
        if (settings.clusters or 0) > instances:
            raise TrainingError(
                f"--clusters {settings.clusters}: expected at most {instances:,}, the instances to train on; "
                "choose fewer"
            )
        if settings.clusters and settings.clusters < per_epoch:
            raise TrainingError(
                f"--clusters {settings.clusters}: expected at least {per_epoch:,}, the batches of an epoch, as larger "
                "clusters gain nothing; choose more, or 0 for random batches"
            )
        if settings.cluster_from >= max(1, epochs):
            raise TrainingError(
                f"--cluster-from {settings.cluster_from}: expected an epoch before the end, found {epochs} in all; "
                "choose an earlier one, or --clusters 0"
            )
        if (settings.bank or 0) > labels:
            raise TrainingError(
                f"--bank {settings.bank}: expected at most {labels:,}, the labels; choose a smaller one"
            )
        steps = min(epochs * per_epoch, settings.max_steps or epochs * per_epoch)
        clusters = _clusters(settings, method, instances, per_epoch)
        return cls(
            encoder=encoder,
            encoder_sha256=encoder_sha256,
            dataset_sha256=dataset_sha256,
            method=method.name,
            train=train,
            steps=steps,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=settings.learning_rate or _LEARNING_RATE[train],
            temperature=settings.temperature or method.temperature or 1.0,
            hard_negatives=method.mined(settings.hard_negatives),
            mine_every=settings.mine_every or per_epoch,
            mine_top=settings.mine_top,
            mine_search=_mine_search(settings.mine_search, instances * labels, device),
            positives=method.positives if settings.positives is None else settings.positives,
            validation_fraction=settings.validation_fraction,
            label_inputs=(settings.label_inputs or method.label_inputs) if train == "adapter" else "text",
            label_key_alpha=settings.alpha,
            precision=_precision(settings.precision, device),
            seed=settings.seed,
            micro_batch=settings.micro_batch,
            ranks=ranks,
            device=device,
            max_seconds=settings.max_seconds,
            positive_sampling=settings.positive_sampling or method.positive_sampling,
            clusters=clusters,
            cluster_from=settings.cluster_from,
            cluster_every=_cluster_every(settings, epochs) if clusters else 1,
            options=_options(settings, method, labels),
        )

    @property
    def mines(self) -> bool:
        return bool(self.hard_negatives)

    def rate(self, step: int, seconds: float = 0.0) -> float:
        """The learning rate of a step: a line up to the peak, a line down to 0, by steps or by time, as either ends."""
        if self.max_seconds:
            step = max(step, min(self.steps - 1, int(seconds / self.max_seconds * self.steps)))
        warm_up = max(1, math.ceil(_WARM_UP_SHARE * self.steps))
        return self.learning_rate * min((step + 1) / warm_up, (self.steps - step) / max(1, self.steps - warm_up))

    def pace(self, lookup: bool) -> float:
        """How much faster than all else a head learns: its networks, or what it looks up for a label (UniDEC)."""
        return 1.0 if self.train == "adapter" else 10.0 if lookup else 2.0

    def ended(self, step: int, seconds: float) -> bool:
        return step >= self.steps or 0 < self.max_seconds <= seconds

    def differences(self, other: dict[str, Any], trained: bool = False) -> list[str]:
        """What a saved recipe, whose training may be done, does otherwise, as its user would call it."""
        own, other = _saved(dataclasses.asdict(self)), _saved(_SINCE_ADDED | other)
        counts = [name for name in own if not (trained and name in _MAKING)]
        names = [name.removesuffix("_sha256") for name in counts if name not in other or other[name] != own[name]]
        return list(dict.fromkeys(names))


# What a recipe that was saved before these existed would have held.
_SINCE_ADDED = {
    "max_seconds": 0.0,
    "positive_sampling": "uniform",
    "clusters": 0,
    "cluster_from": 0,
    "cluster_every": 1,
    "options": dataclasses.asdict(Options()),
}


def _epochs(settings: TrainSettings) -> int:
    """Passes over the instances; a training that ends by the clock needs no other end."""
    if settings.epochs is None:
        return _NO_END if settings.max_seconds else _EPOCHS[settings.train]
    return settings.epochs


def _clusters(settings: TrainSettings, method: Method, instances: int, per_epoch: int) -> int:
    """Of how many clusters of queries batches are made, at first."""
    if settings.clusters is not None:
        return settings.clusters
    return {"none": 0, "growing": math.ceil(instances / _FIRST_CLUSTER), "whole": per_epoch}[method.clusters]


def _cluster_every(settings: TrainSettings, epochs: int) -> int:
    return settings.cluster_every or max(1, min(_CLUSTER_EVERY, epochs // _CLUSTERINGS))


def _options(settings: TrainSettings, method: Method, labels: int) -> Options:
    """What the method heeds of its own settings; the others stay at what changes nothing."""
    bank = settings.bank or 1 << max(0, int(math.log2(labels / _LABELS_PER_FREE)))
    told: dict[str, Any] = {
        "symmetric": settings.symmetric,
        "psl": settings.psl,
        "margin": settings.margin,
        "prototype": tuple(settings.prototype),
        "bank": bank if "free" in settings.prototype else 0,
    }
    return Options(**{name: value for name, value in told.items() if name in method.flags})


def _saved(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as JSON brings it back, what its method was told among the rest."""
    flat: dict[str, Any] = json.loads(json.dumps(recipe))
    told: dict[str, Any] = flat.pop("options", {})
    return flat | told


def _mine_search(search: str, pairs: int, device: str) -> MineSearch:
    if search == "auto":
        return "approximate" if device == "cpu" and pairs > _MOST_EXACT_PAIRS else "exact"
    return "exact" if search == "exact" else "approximate"


def _precision(precision: str, device: str) -> str:
    if precision == "auto":
        return "fp32" if device == "cpu" else "bf16"
    return precision
