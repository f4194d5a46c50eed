"""The recipe: everything that decides the trained weights, with every default filled in."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from trainer.errors import TrainingError
from trainer.methods import METHODS
from trainer.negatives import MineSearch
from trainer.settings import TrainSettings

# By what is trained: a frozen encoder's adapter is cheap and starts from nothing, a whole encoder is neither.
_EPOCHS = {"adapter": 15, "full": 3}
_LEARNING_RATE = {"adapter": 1e-3, "full": 1e-4}
_BATCH_SIZE = {"adapter": 256, "full": 128}

_WARM_UP_SHARE = 0.1

# These decide the weights while they are made; once they are, it does not matter where one goes on.
_MAKING = ("micro_batch", "ranks", "device")

# Pairs of instance and label that brute force goes through in about half a minute on two cores.
_MOST_EXACT_PAIRS = 1 << 31


@dataclass(frozen=True)
class Recipe:
    """How to train on a dataset; two equal recipes make equal weights: on one CPU to the byte, else but for rounding.

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
        temperature: Tau of the loss.
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
            TrainingError: If a batch is larger than the dataset.
        """
        method, train = METHODS[settings.method], settings.train
        if settings.batch_size is not None and settings.batch_size > instances:
            raise TrainingError(
                f"--batch-size {settings.batch_size}: expected at most {instances:,}, the instances to train on; "
                "choose a smaller one"
            )
        batch_size = settings.batch_size or min(_BATCH_SIZE[train], instances)
        per_epoch = math.ceil(instances / batch_size)
        epochs = _EPOCHS[train] if settings.epochs is None else settings.epochs
        steps = min(epochs * per_epoch, settings.max_steps or epochs * per_epoch)
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
            temperature=settings.temperature or method.temperature,
            hard_negatives=method.mined(settings.hard_negatives),
            mine_every=settings.mine_every or per_epoch,
            mine_top=settings.mine_top,
            mine_search=_mine_search(settings.mine_search, instances * labels, device),
            positives=method.positives if settings.positives is None else settings.positives,
            validation_fraction=settings.validation_fraction,
            label_inputs=settings.label_inputs if train == "adapter" else "text",
            label_key_alpha=settings.alpha,
            precision=_precision(settings.precision, device),
            seed=settings.seed,
            micro_batch=settings.micro_batch,
            ranks=ranks,
            device=device,
        )

    @property
    def mines(self) -> bool:
        return bool(self.hard_negatives)

    def rate(self, step: int) -> float:
        """The learning rate of a step: a line up to the peak, a line down to 0."""
        warm_up = max(1, math.ceil(_WARM_UP_SHARE * self.steps))
        return self.learning_rate * min((step + 1) / warm_up, (self.steps - step) / max(1, self.steps - warm_up))

    def differences(self, other: dict[str, Any], trained: bool = False) -> list[str]:
        """What a saved recipe, whose training may be done, does otherwise, as its user would call it."""
        own = dataclasses.asdict(self)
        counts = [name for name in own if not (trained and name in _MAKING)]
        names = [name.removesuffix("_sha256") for name in counts if name not in other or other[name] != own[name]]
        return list(dict.fromkeys(names))


def _mine_search(search: str, pairs: int, device: str) -> MineSearch:
    if search == "auto":
        return "approximate" if device == "cpu" and pairs > _MOST_EXACT_PAIRS else "exact"
    return "exact" if search == "exact" else "approximate"


def _precision(precision: str, device: str) -> str:
    if precision == "auto":
        return "fp32" if device == "cpu" else "bf16"
    return precision
