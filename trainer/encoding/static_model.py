"""The static model: one vector and one weight for each token, one weight for each position, and a projection.

    v(x) = P sum over positions i of x of exp(c a_i) w_t e_t,  where t is the token at position i

The token vectors e, the weights w, the numbers a and the projection P are trained. The model has no attention, so a
text costs one look-up for each token. The dual encoder divides v by its length. The weighted mean and the weighted sum
then give the same unit vector.

With these weights, a training can learn that a title at the start of a text says more than the words after it.
All a_i start at 0. A token at a position without a weight has the weight of the last position.

The projection changes the vectors of all tokens, also of tokens that training does not see.
"""

from __future__ import annotations

import abc
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

# Share of the tokens that a training step leaves out of a text. A text then depends less on single tokens.
_TOKEN_DROPOUT = 0.1
# The constant c. AdamW changes a number by about the learning rate in a step, so c lets the weight of a position change
# by 10% in a step with the learning rate 1e-3.
_POSITION_RATE = 100.0


class StaticConfig(PretrainedConfig):
    """The sizes of a static model, as stored in `config.json`."""

    model_type = "recollect_static"

    def __init__(self, vocab_size: int = 1, hidden_size: int = 1, positions: int = 1, **others: Any) -> None:
        self.vocab_size, self.hidden_size, self.positions = vocab_size, hidden_size, positions
        super().__init__(**others)  # type: ignore[no-untyped-call]


class TextVectors(nn.Module, abc.ABC):
    """A module that returns one vector for each text, in place of a transformer that returns one for each token."""

    @abc.abstractmethod
    def forward(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch dim"]:
        """Return vectors of any length."""


class StaticModel(PreTrainedModel, TextVectors):
    """A table of token vectors with weights and a projection, in the form of a Hugging Face model."""

    config_class = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.weights = nn.Parameter(torch.ones(config.vocab_size))
        self.positions = nn.Parameter(torch.zeros(config.positions))
        self.projection = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, vectors: Float[Tensor, "token dim"], weights: Float[Tensor, " token"], positions: int) -> StaticModel:
        """Make an untrained static model, whose projection and weights of positions change nothing."""
        tokens, dim = vectors.shape
        model = cls(StaticConfig(vocab_size=tokens, hidden_size=dim, positions=positions))
        model.tokens.weight.data.copy_(vectors)
        model.weights.data.copy_(weights)
        nn.init.eye_(model.projection.weight)
        model.eval()  # type: ignore[no-untyped-call]
        return model

    def get_input_embeddings(self) -> nn.Module:
        return self.tokens

    def forward(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch dim"]:
        """The weighted sum of each text's token vectors, projected. Padding costs no look-up."""
        present = attention_mask.bool()
        ids, lengths = input_ids[present], present.sum(dim=1)
        weights = self.weights[ids] * at_positions(self.position_weights(), input_ids)[present]
        weights = nn.functional.dropout(weights, _TOKEN_DROPOUT, self.training)
        sums = nn.functional.embedding_bag(
            ids, self.tokens.weight, lengths.cumsum(0) - lengths, mode="sum", per_sample_weights=weights
        )
        projected: Tensor = self.projection(sums)
        return projected

    def lookups(self) -> list[nn.Parameter]:
        """The tables that training does not decay."""
        return list(self.tokens.parameters())

    def position_weights(self) -> Float[Tensor, " position"]:
        """The weight of each position."""
        return (_POSITION_RATE * self.positions).exp()

    def folded(self) -> Float[Tensor, "token dim"]:
        """The table that includes token weights and projection: v(x) is the sum of its rows, weighted by position."""
        with torch.no_grad():
            table: Tensor = self.projection(self.tokens.weight * self.weights[:, None])
        return table


def at_positions(
    weights: Float[Tensor, " position"], input_ids: Int[Tensor, "batch token"]
) -> Float[Tensor, "batch token"]:
    """Return the weight of each token, by its position. A position beyond the weights has the last weight."""
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).clamp_max(len(weights) - 1)
    return weights[positions].expand_as(input_ids)


AutoConfig.register(StaticConfig.model_type, StaticConfig)
AutoModel.register(StaticConfig, StaticModel)
