"""The table of a static encoder, for its ONNX graph: token vectors, weights and projection in one array.

A lower precision makes the table smaller: a vocabulary of 30,522 tokens with 384 dimensions takes 47 MB in fp32, 23 MB
in fp16 and 12 MB in int8. In int8, each row has its own scale.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from service.bundle.manifest import Precision
from trainer.encoder import UnitVectorModel
from trainer.static.model import StaticModel

_MAX_INT8 = 127


class _Table(nn.Module):
    """The rows of a table, in the place of a transformer's last layer. Their mean has the direction of their sum."""

    def __init__(self, config: object, rows: Tensor) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("rows", rows)

    def look_up(self, input_ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token dim"]:
        vectors: Tensor = self.rows[input_ids].float()
        return vectors

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.look_up(input_ids))


class _Int8Table(_Table):
    """A table in int8 with a scale for each row."""

    def __init__(self, config: object, rows: Float[Tensor, "token dim"]) -> None:
        scales = rows.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _MAX_INT8
        super().__init__(config, (rows / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales[:, None])

    def look_up(self, input_ids: Int[Tensor, "batch token"]) -> Float[Tensor, "batch token dim"]:
        scaled: Tensor = super().look_up(input_ids) * self.scales[input_ids]
        return scaled


def with_table(model: UnitVectorModel, precision: Precision) -> UnitVectorModel:
    """A static model whose look-ups return finished rows, in this precision. It has the same adapter and head."""
    assert isinstance(model.transformer, StaticModel)
    rows, config = model.transformer.folded(), model.transformer.config
    match precision:
        case "fp32":
            table = _Table(config, rows)
        case "fp16":
            table = _Table(config, rows.half())
        case "int8":
            table = _Int8Table(config, rows)
    return UnitVectorModel(cast(PreTrainedModel, table), "mean", model.adapter, model.head).eval()
