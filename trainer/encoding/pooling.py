"""Pooling: from the vectors of a text's tokens to one vector, and the layers that may follow it.

The kinds of pooling and the layers are those of sentence-transformers. Kinds that `+` joins are concatenated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.trainer.errors import EncoderError

# Activations of `torch.nn` that a Dense layer may have.
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "LeakyReLU", "Softplus", "Mish")

# A layer as JSON: its kind, `Dense`, `LayerNorm` or `Normalize`, and its sizes.
Layer: TypeAlias = dict[str, Any]


class Pooler(nn.Module):
    """Pools the vectors of the tokens, and applies layers to the result.

    Args:
        pooling: One of `POOLINGS`, or several, joined by `+`.

    Raises:
        ValueError: If a layer has another kind or activation.
        KeyError, TypeError: If a layer lacks a size, or has another one.
    """

    def __init__(self, pooling: str, layers: Sequence[Layer] = ()) -> None:
        super().__init__()
        self.pooling, self._described = pooling, layers
        self.layers = nn.Sequential(*map(_make, layers))

    def forward(
        self, hidden: Float[Tensor, "batch token dim"], mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch pooled"]:
        kinds = self.pooling.split("+")
        pooled: Tensor = self.layers(torch.cat([_pool(kind, hidden, mask) for kind in kinds], dim=-1))
        return pooled

    def dim(self, hidden_size: int) -> int:
        """The size of the result, given that of the vectors of tokens.

        Raises:
            EncoderError: If a layer expects another number of inputs than it gets.
        """
        dim = hidden_size * len(self.pooling.split("+"))
        for layer in self._described:
            inputs = layer.get("in_features", layer.get("dimension", dim))
            if inputs != dim:
                raise EncoderError(
                    f"--pooling {self.pooling}: expected a vector of {inputs:,} dimensions, the inputs of the layer "
                    f"{layer['kind']}, found {dim:,}; choose another pooling"
                )
            dim = layer.get("out_features", dim)
        return dim

    def extra_repr(self) -> str:
        return self.pooling


def _pool(
    kind: str, hidden: Float[Tensor, "batch token dim"], mask: Int[Tensor, "batch token"]
) -> Float[Tensor, "batch dim"]:
    """Pool with one kind. The padding is at the end of a text."""
    present = mask.unsqueeze(-1).to(hidden.dtype)
    match kind:
        case "cls":
            return hidden[:, 0]
        case "last":
            last = (mask.sum(dim=1) - 1).clamp_min(0)
            return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1])).squeeze(1)
        case "max":
            return hidden.masked_fill(present == 0, float("-inf")).amax(dim=1)
        case "weightedmean":  # the weight of a token is its position, from 1 on (SGPT, Muennighoff, 2022)
            present = present * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
    summed, weight = (hidden * present).sum(dim=1), present.sum(dim=1)
    return summed / (weight.sqrt() if kind == "mean_sqrt_len_tokens" else weight)


class _Normalize(nn.Module):
    def forward(self, vectors: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        return nn.functional.normalize(vectors, dim=-1)


def _make(layer: Layer) -> nn.Module:
    """Make a layer. Its weights have the names of sentence-transformers."""
    match layer["kind"]:
        case "Dense" if layer["activation"] in ACTIVATIONS:
            linear = nn.Linear(layer["in_features"], layer["out_features"], layer["bias"])
            return nn.Sequential(OrderedDict(linear=linear, activation=getattr(nn, layer["activation"])()))
        case "LayerNorm":
            return nn.Sequential(OrderedDict(norm=nn.LayerNorm(layer["dimension"])))
        case "Normalize":
            return _Normalize()
    raise ValueError(f"the layer {layer}")
