"""The recipe of a training: every choice that determines the trained weights, with all defaults filled in."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from recollect.core.settings import as_flag
from recollect.trainer.errors import TrainingError
from recollect.trainer.methods import METHODS, Method, MethodOptions
from recollect.trainer.metrics import PROPENSITY
from recollect.trainer.settings import VALIDATE_LAMBDA
from recollect.trainer.train_settings import TrainSettings

MineSearch = Literal["exact", "approximate"]

# Defaults for an adapter or a head, a whole encoder and a whole static encoder. Steps of an adapter or of a static
# encoder are cheap, and both start with little knowledge.
_EPOCHS = {"adapter": 15, "full": 3, "static": 20}
_LEARNING_RATE = {"adapter": 1e-3, "full": 1e-4, "static": 1e-3}
_BATCH_SIZE = {"adapter": 256, "full": 128, "static": 1_024}
# Number of epochs if only --max-seconds limits the training.
_UNLIMITED_EPOCHS = 1_000

# Factors on the learning rate of a whole encoder for the networks and the tables of its head (UniDEC).
_HEAD_FACTOR, _TABLE_FACTOR = 2, 10

# Fields that influence a training but may differ once the training is finished.
_ONLY_WHILE_TRAINING = ("micro_batch", "ranks", "device")

# Epochs between two clusterings: 5, as in NGAME, or a sixth of all epochs if that is less.
_CLUSTER_EVERY, _CLUSTERINGS = 5, 6
# Number of queries in a cluster at the first clustering, for methods whose clusters grow.
_FIRST_CLUSTER = 8

# Number of pairs (instance, label) that exact search compares in about half a minute on two cores.
_MOST_EXACT_PAIRS = 1 << 31


@dataclass(frozen=True)
class Recipe:
    """All choices of a training. Equal recipes give equal weights, on one CPU bit by bit, elsewhere up to rounding.

    A training with `max_seconds` is an exception: the number of its steps depends on the speed of the machine.

    A field that is not listed here has the value and the meaning of the flag with its name.

    Attributes:
        encoder: Name, pooling and lengths of the encoder.
        train: `adapter` or `head` (on a frozen encoder), or `full`.
        epochs: Passes over the instances. `steps` may end the last epoch early.
        learning_rate: Peak learning rate, reached after the warm-up. Then the rate falls linearly to 0.
        temperature: Tau of the loss; 1 if the method has none.
        hard_negatives: Number of mined negatives of a query. None: the pool is the whole label space.
        mine_from: First step with mined negatives.
        micro_batch: Number of rows in one forward pass, which share a draw of dropout; 0: as memory allows.
        ranks: Processes that share each step. Each draws its own dropout.
        device: `cpu` or `cuda`, whose random numbers differ.
        clusters: Number of clusters of queries at the first clustering; 0: random batches.
        cluster_double_at: Epochs at which clusters become twice as large; empty: at every clustering.
        validate_lambda: Values of lambda at which checkpoints are compared.
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
    head_learning_rate: float
    table_learning_rate: float
    temperature: float
    hard_negatives: int | None
    mine_every: int
    mine_top: int
    mine_search: MineSearch
    positives: int
    validation_fraction: float | None
    label_inputs: str
    precision: str
    seed: int
    micro_batch: int = 0
    ranks: int = 1
    device: str = "cpu"
    max_seconds: float = 0.0
    positive_sampling: str = "uniform"
    propensity: tuple[float, float] = PROPENSITY
    clusters: int = 0
    cluster_from: int = 0
    cluster_every: int = 1
    cluster_double_at: tuple[int, ...] = ()
    mine_from: int = 0
    lora: int = 0
    normalise: bool = True
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    embedding_dropout: float = 0.0
    validate_every: int = 0
    validate_lambda: tuple[float, ...] = VALIDATE_LAMBDA
    preset: str | None = None
    scale: float = 1.0
    options: MethodOptions = MethodOptions()

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
        static: bool = False,
    ) -> Recipe:
        """Make a recipe from settings, and fill in their defaults.

        Raises:
            TrainingError: If a setting does not suit the number of instances, labels or epochs.
        """
        method, train = METHODS[settings.method], settings.trained
        kind = ("static" if static else "full") if train == "full" else "adapter"
        if settings.batch_size is not None and settings.batch_size > instances:
            raise TrainingError(
                f"--batch-size {settings.batch_size}: expected at most {instances:,}, the instances to train on; "
                "choose a smaller one"
            )
        batch_size = settings.batch_size or min(_BATCH_SIZE[kind], instances)
        per_epoch = math.ceil(instances / batch_size)
        epochs = _epochs(settings, kind, per_epoch)
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
        rate = settings.learning_rate or _LEARNING_RATE[kind]
        head_factor, table_factor = (_HEAD_FACTOR, _TABLE_FACTOR) if train == "full" else (1, 1)
        steps = min(epochs * per_epoch, settings.max_steps or epochs * per_epoch)
        clusters = _clusters(settings, method, instances, per_epoch)
        _refuse_late(settings, math.ceil(steps / per_epoch), _cluster_every(settings, epochs))
        sampling = settings.positive_sampling or method.positive_sampling
        chosen = dict[str, Any](
            encoder=encoder,
            encoder_sha256=encoder_sha256,
            dataset_sha256=dataset_sha256,
            method=settings.method,
            train=train,
            steps=steps,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=rate,
            head_learning_rate=settings.head_learning_rate or head_factor * rate,
            table_learning_rate=settings.table_learning_rate or table_factor * rate,
            temperature=settings.tau(method.temperature),
            hard_negatives=method.mined(settings.hard_negatives),
            mine_every=settings.mine_every or settings.mine_every_epochs * per_epoch,
            mine_search="approximate" if device == "cpu" and instances * labels > _MOST_EXACT_PAIRS else "exact",
            positives=method.positives if settings.positives is None else settings.positives,
            label_inputs=_label_inputs(settings, method, encoder) if train != "full" else "text",
            precision=_precision(settings.precision, device),
            ranks=ranks,
            device=device,
            positive_sampling=sampling,
            propensity=settings.propensity if sampling == "propensity" else PROPENSITY,
            clusters=clusters,
            cluster_every=_cluster_every(settings, epochs) if clusters else 1,
            cluster_double_at=tuple(settings.cluster_double_at) if clusters else (),
            mine_from=settings.mine_from * per_epoch,
            validate_lambda=tuple(settings.validate_lambda),
            options=_options(settings, method).with_defaults(labels),
        )
        as_given = {each.name: getattr(settings, each.name) for each in fields(cls) if each.name not in chosen}
        return cls(**chosen, **as_given)

    @property
    def mines(self) -> bool:
        return bool(self.hard_negatives)

    def mines_at(self, step: int) -> bool:
        """Return whether negatives are mined before a step."""
        return self.mines and step >= self.mine_from and (step - self.mine_from) % self.mine_every == 0

    def clusters_at(self, epoch: int, fewest: int) -> int:
        """Return the number of clusters to make at the start of an epoch; 0: keep those of the previous epoch.

        First small, then larger clusters (NGAME, PRIME): each clustering makes half as many clusters as the previous
        one. With `cluster_double_at`, only the clusterings at and after these epochs do so.

        Args:
            fewest: Number of batches in an epoch. Clusters larger than a batch have no further benefit.
        """
        clusterings, epochs_since = divmod(epoch - self.cluster_from, self.cluster_every)
        if self.clusters == 0 or clusterings < 0 or epochs_since > 0:
            return 0
        doubled = sum(self.cluster_from < double <= epoch for double in self.cluster_double_at)
        return max(self.clusters >> (doubled if self.cluster_double_at else clusterings), fewest)

    def rate(self, step: int, seconds: float = 0.0) -> float:
        """Return the learning rate of a step: linear warm-up to the peak, then linear decay to 0.

        Args:
            seconds: Time spent before the step, which counts with `max_seconds`.
        """
        steps = self._expected_steps(step, seconds)
        warm_up = max(1, math.ceil(self.warmup * steps if self.warmup < 1 else self.warmup))
        return self.learning_rate * min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))

    def _expected_steps(self, step: int, seconds: float) -> int:
        """Return the number of steps in all. With `max_seconds`, it is at most what fits in at the present speed."""
        if not (self.max_seconds and step and seconds):
            return self.steps
        return min(self.steps, max(step + 1, math.ceil(step * self.max_seconds / seconds)))

    def ended(self, step: int, seconds: float) -> bool:
        return step >= self.steps or 0 < self.max_seconds <= seconds

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"options": self.options.model_dump(mode="json")}

    def differences(self, other: dict[str, Any], trained: bool = False) -> list[str]:
        """Return the names of the fields in which a saved recipe differs."""
        own, other = _flat(self.as_json()), _flat(other)
        counts = [name for name in own if not (trained and name in _ONLY_WHILE_TRAINING)]
        names = [name.removesuffix("_sha256") for name in counts if name not in other or other[name] != own[name]]
        return list(dict.fromkeys(names))


def _epochs(settings: TrainSettings, kind: str, per_epoch: int) -> int:
    """Return the number of epochs: the given one, or enough for the given limit of steps or seconds."""
    if settings.epochs is not None:
        return settings.epochs
    if settings.max_steps:
        return math.ceil(settings.max_steps / per_epoch)
    return _UNLIMITED_EPOCHS if settings.max_seconds else _EPOCHS[kind]


def _clusters(settings: TrainSettings, method: Method, instances: int, per_epoch: int) -> int:
    """Return the number of clusters at the first clustering."""
    if settings.clusters is not None:
        return settings.clusters
    return {"none": 0, "growing": math.ceil(instances / _FIRST_CLUSTER), "whole": per_epoch}[method.clusters]


def _cluster_every(settings: TrainSettings, epochs: int) -> int:
    return settings.cluster_every or max(1, min(_CLUSTER_EVERY, epochs // _CLUSTERINGS))


def _label_inputs(settings: TrainSettings, method: Method, encoder: dict[str, Any]) -> str:
    """Return the inputs for labels: those of the adapter from which the training starts, if there is one."""
    alpha = encoder.get("label_alpha")
    if alpha is None:
        return settings.label_inputs or method.label_inputs
    started = "enriched" if alpha else "text"
    if settings.label_inputs not in (None, started):
        raise TrainingError(
            f"--label-inputs {settings.label_inputs}: expected {started}, as for the adapter of {encoder['name']}; "
            "omit the flag"
        )
    return started


def _refuse_late(settings: TrainSettings, epochs: int, cluster_every: int) -> None:
    """Refuse epochs that the user gives and that have no effect.

    Args:
        epochs: Number of epochs that begin.
    """
    given, first = settings.model_fields_set, settings.cluster_from
    for name in ("mine_from", "cluster_from"):
        if name in given and getattr(settings, name) >= epochs:
            raise TrainingError(
                f"{as_flag(name)} {getattr(settings, name)}: expected an epoch before the end, found {epochs} in all; "
                "choose an earlier one"
            )
    last = first + (epochs - 1 - first) // cluster_every * cluster_every
    late = [epoch for epoch in settings.cluster_double_at if not first < epoch <= last]
    if late and "cluster_double_at" in given:
        raise TrainingError(
            f"--cluster-double-at {late[0]}: expected an epoch after the first clustering, {first}, and until the last "
            f"one, {last}; omit it"
        )


def _options(settings: TrainSettings, method: Method) -> MethodOptions:
    """Return the settings that belong to the method."""
    return method.options(**{name: getattr(settings, name) for name in method.options.model_fields})


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a recipe, with the method's options as fields beside the other fields."""
    flat: dict[str, Any] = json.loads(json.dumps(recipe))
    options: dict[str, Any] = flat.pop("options", {})
    return flat | options


def _precision(precision: str, device: str) -> str:
    if precision == "auto":
        return "fp32" if device == "cpu" else "bf16"
    if precision == "tf32" and device == "cpu":
        raise TrainingError(
            "--precision tf32: expected --device cuda, because no CPU has this precision, found --device cpu; use fp32"
        )
    return precision
