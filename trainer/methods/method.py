"""A training method: a pool of keys, a loss over the pool, an optional head, defaults, and flags of its own.

The modules of the methods import torch only when a loss or a head is computed, so that `recollect train --help` is
fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel
from pydantic_settings import SettingsConfigDict

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.heads.head import Head
    from recollect.trainer.methods.scored import Scored


class MethodOptions(BaseModel):
    """The flags that belong to one method. Subclasses declare each flag once: name, type, default and help text.

    `TrainSettings` inherits the options of all methods, so that each field is a flag and an environment variable. The
    help names the methods of a flag. The recipe stores the options of the chosen method.
    """

    # A settings class inherits this class, so mypy needs the type that settings have.
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(frozen=True, allow_inf_nan=False)

    def contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction between these flags."""
        yield from ()

    def with_defaults(self, labels: int) -> MethodOptions:
        """Fill in the defaults that depend on the number of labels.

        Raises:
            TrainingError: If a value does not suit the number of labels.
        """
        return self


@dataclass(frozen=True)
class Method:
    """One way to train an encoder.

    Attributes:
        loss: The loss of each query, given the method's options.
        hard_negatives: Default number of mined negatives for each query. None: the pool is the whole label space and
            needs no mined negatives.
        positives: Default number of true labels drawn for a query each time the query is in a batch. 0: all true labels
            are in the pool.
        temperature: Default tau. None: the loss takes similarities that are not divided by tau.
        instances: Whether the instances of the batch are keys of the pool too.
        pulls_pool: Whether the positives of a query are all its true labels in the pool, or only the labels drawn for
            this query.
        follows_draws: Whether the draw of true labels has an effect beside their place in the pool.
        label_loss: The loss of each label over the queries, added to the queries' loss. A flag `symmetric` of the
            method can switch it off. None: the method has no such loss.
        numbers: The learned numbers of the loss, such as a scale, with their values at the start. The loss reads them
            in `Scored.numbers`; they are trained with the weights of the model, and saved with the training's state.
        positive_sampling: Default way to draw true labels.
        clusters: Default composition of batches: random queries; clusters that grow (NGAME); or one cluster a batch.
        label_inputs: Default input of an adapter for a label: `text` or `enriched`.
        head: Imports the class of the head. None: the method has no head.
        head_shape: Arguments of the head besides the size of a vector, given the number of labels and the options.
        head_option: The option that adds the head if it is not 0. None: the method always has its head.
        without_table: What the options have in place of a head with a vector for each label or group of labels, in the
            words of a message; None if the head has such vectors.
        tuned: Whether `--tune auto` chooses the memory's lambda after training.
    """

    source: str
    loss: Callable[[Scored, Any], Float[Tensor, " query"]]
    hard_negatives: int | None
    positives: int
    temperature: float | None
    options: type[MethodOptions] = MethodOptions
    instances: bool = False
    pulls_pool: bool = False
    follows_draws: Callable[[Any], bool] = lambda _: False
    label_loss: Callable[[Scored, Any], Float[Tensor, " label"]] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    positive_sampling: Literal["uniform", "propensity"] = "uniform"
    clusters: Literal["none", "growing", "whole"] = "none"
    label_inputs: Literal["text", "enriched"] = "enriched"
    head: Callable[[], type[Head]] | None = None
    head_shape: Callable[[int, Any], dict[str, Any]] = lambda labels, _: {"labels": labels}
    head_option: str | None = None
    without_table: Callable[[Any], str | None] = lambda _: None
    tuned: bool = False

    def mined(self, given: int | Literal["all"] | None) -> int | None:
        """Return the number of mined negatives for each query: the given number, or the default.

        None: the pool is the whole label space.
        """
        if given == "all":
            return None
        return self.hard_negatives if given is None else given

    def has_head(self, options: Any) -> bool:
        """Return whether a model has a head with these options."""
        return self.head is not None and (self.head_option is None or bool(getattr(options, self.head_option)))

    def make_head(self, dim: int, labels: int, options: MethodOptions) -> Head | None:
        """Make the head for vectors of this size and this number of labels. None if there is no head."""
        if self.head is None or not self.has_head(options):
            return None
        return self.head()(dim, **self.head_shape(labels, options))
