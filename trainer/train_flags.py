"""The flags of `recollect train`: those that all methods share, and those of each method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.core.settings import Listed
from recollect.trainer.methods import METHODS, Method, MethodName, MethodOptions, methods_with
from recollect.trainer.settings import VALIDATE_LAMBDA, NotEmpty, Positive, RankChoice, Share, TrainingInputs


def _those_with(holds: Callable[[Method], bool]) -> str:
    """The names of some methods, for a help text: `a, b and c`."""
    *others, last = [name for name, method in METHODS.items() if holds(method)]
    return f"{', '.join(others)} and {last}" if others else last


_TEMPERATURES = [method.temperature for method in METHODS.values() if method.temperature is not None]


class SharedTrainSettings(TrainingInputs):
    """The flags of `recollect train` that all methods share."""

    preset: str | None = Field(
        None,
        description="settings of a published experiment, such as rae/lf-amazontitles-131k; other flags override them",
    )
    scale: float = Field(
        1,
        gt=0,
        le=1,
        description="factor on batch, epochs and steps of --preset; below 1, a static encoder reads short texts",
    )
    query_encoder: Literal["same", "static"] = Field(
        "same", description="encoder of queries: same: the run's encoder; static: token vectors distilled from it"
    )
    lora: int = Field(
        0, ge=0, description="rank of LoRA matrices, which alone are trained (needs the extra `lora`); 0: all weights"
    )
    method: MethodName = Field("rae", description="training method: loss, pool of keys, and head above the encoder")
    head_learning_rate: Positive | None = Field(
        None, description="peak learning rate of a head's networks; unset: 2 times the encoder's, or the adapter's"
    )
    table_learning_rate: Positive | None = Field(
        None,
        description="peak learning rate of a head's vectors of labels; unset: 10 times the encoder's, or the adapter's",
    )
    warmup: float = Field(
        0.1,
        ge=0,
        description="first part of the training, in which the learning rate rises: a share of the steps if below 1, "
        "otherwise their number",
    )
    weight_decay: float = Field(
        0.01,
        ge=0,
        description="weight decay of matrices; norms, biases, and tables of tokens or free vectors have none",
    )
    clip_norm: float = Field(
        1, ge=0, description="maximum length of the gradient, to which longer ones are cut; 0: any"
    )
    temperature: float | None = Field(
        None,
        gt=0,
        description=f"tau of the loss; unset: the method's default, from {min(_TEMPERATURES):.2g} to "
        f"{max(_TEMPERATURES):.2g}; "
        f"{_those_with(lambda method: method.temperature is None)} have no tau",
    )
    normalise: CliImplicitFlag[bool] = Field(
        True, description="make all vectors unit vectors; without: vectors keep their lengths, and tau is 1 if unset"
    )
    embedding_dropout: float = Field(
        0, ge=0, lt=1, description="dropout on the encoder's vectors in training, before they are normalised"
    )
    positives: int | None = Field(
        None,
        ge=0,
        description="true labels drawn for a query each time it is in a batch; 0: all; unset: the method's default",
    )
    positive_sampling: Literal["uniform", "propensity"] | None = Field(
        None,
        description="draw true labels uniformly, or rare labels more often (propensity); unset: propensity for "
        f"{_those_with(lambda method: method.positive_sampling == 'propensity')}",
    )
    hard_negatives: Annotated[int, Field(ge=0)] | Literal["all"] | None = Field(
        None,
        description="mined negatives of a query, or all: every label; unset: the method's default "
        f"(all for {_those_with(lambda method: method.hard_negatives is None)})",
    )
    mine_from: int = Field(0, ge=0, description="first epoch with hard negatives")
    mine_every: int = Field(
        0, ge=0, description="steps between two minings of hard negatives; 0: --mine-every-epochs decides"
    )
    mine_every_epochs: int = Field(1, ge=1, description="epochs between two minings of hard negatives")
    mine_top: int = Field(
        50, ge=1, description="number of nearest labels of an instance from which its negatives are drawn"
    )
    clusters: int | None = Field(
        None,
        ge=0,
        description="clusters of similar queries that form batches; 0: random batches; unset: the method's default",
    )
    cluster_from: int = Field(
        0, ge=0, description="first epoch with clustered batches; an untrained encoder needs random batches first"
    )
    cluster_every: int | None = Field(
        None,
        ge=1,
        description="epochs between clusterings, each with half the clusters; unset: a sixth of all epochs, at most 5",
    )
    cluster_double_at: Annotated[list[Annotated[int, Field(ge=0)]], *Listed] = Field(
        [], description="epochs at which the number of clusters halves, such as 25,50,75; unset: at every clustering"
    )
    micro_batch: int = Field(
        0, ge=0, description="number of texts that the encoder processes at once (gradient cache); 0: as memory allows"
    )
    validation_fraction: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="share of the train split held out from training, at most 4,000 texts, to choose the checkpoint, "
        "tune, rank and calibrate; unset: 0.05, but at least 600 texts or, if these are too many, a fifth",
    )
    validate_every: int = Field(
        0, ge=0, description="steps between two validations, each of which encodes all texts; 0: one epoch"
    )
    validate_lambda: Annotated[list[Share], *Listed, NotEmpty] = Field(
        list(VALIDATE_LAMBDA), description="values of lambda at which checkpoints are compared; the best one counts"
    )
    seed: int = Field(0, ge=0, description="seed of all random draws")
    label_inputs: Literal["text", "enriched"] | None = Field(
        None,
        description="input of an adapter for a label: text vector ("
        f"{_those_with(lambda method: method.label_inputs == 'text')}), or mean with its instances",
    )
    key_dtype: Literal["float32", "float16"] = Field("float32", description="data type of stored keys")
    vectors: Path | None = Field(
        None, description="run with the same encoder, whose vectors are reused; only other texts are encoded"
    )
    from_: Path | None = Field(
        None,
        alias="from",
        description="run to start from: its checkpoint, lengths, pooling and trained part; a training makes a new head",
    )
    tune: Literal["auto", "yes", "no"] = Field(
        "auto",
        description="choose the memory's lambda on held-out instances, as `recollect tune` does; auto: only for "
        f"{_those_with(lambda method: method.tuned)}",
    )
    rank: RankChoice = "no"
    save_minutes: float = Field(5, ge=0, description="minutes between two saves of the training state")
    best: CliImplicitFlag[bool] = Field(
        False,
        description="train an adapter and a static encoder, compare them with no training, "
        "and keep the best, with a ranker",
    )
    minutes: Positive = Field(10, description="time limit of --best in minutes")
    resume: CliImplicitFlag[bool] = Field(False, description="continue the unfinished training of the run folder")
    overwrite: CliImplicitFlag[bool] = Field(False, description="replace the contents of the run folder")

    def tau(self, default: float | None) -> float:
        """Tau of the loss, given the method's default; 1 without normalisation and for a method without tau."""
        return self.temperature or (default if self.normalise else None) or 1.0


def _of_all_methods() -> type[MethodOptions]:
    """A class with the options of all methods. The help of each option begins with the names of its methods."""
    given = dict.fromkeys(method.options for method in METHODS.values())
    lowest = [kind for kind in given if not any(other is not kind and issubclass(other, kind) for other in given)]
    combined: type[MethodOptions] = type("OptionsOfAllMethods", tuple(lowest), {"__module__": __name__})
    for name, option in combined.model_fields.items():
        option.description = f"{', '.join(methods_with(name))}: {option.description}"
    return combined


if TYPE_CHECKING:
    OptionsOfAllMethods = MethodOptions
else:
    OptionsOfAllMethods = _of_all_methods()
