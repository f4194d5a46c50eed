"""The table of a static encoder, for its ONNX graph: token vectors, their weights and projection in one array.

A lower precision makes the table smaller: a vocabulary of 30,522 tokens with 384 dimensions takes 47 MB in fp32, 23 MB
in fp16 and 12 MB in int8. In int8, each row has its own scale.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from recollect.service.bundle.manifest import Precision
from recollect.trainer.encoding.encoder import UnitVectorModel
from recollect.trainer.static.model import StaticModel, TextVectors, at_positions

_MAX_INT8 = 127


class _Table(PreTrainedModel, TextVectors):  # type: ignore[no-untyped-call]
    """A table whose rows are summed.

    One matrix product applies the scales of the rows and the weights of the positions, and leaves out the padding.
    """

    rows: Tensor
    scales: Tensor | None
    positions: Tensor | None

    def __init__(
        self,
        config: PretrainedConfig,
        rows: Tensor,
        positions: Float[Tensor, " position"] | None,
        scales: Float[Tensor, "token 1"] | None = None,
    ) -> None:
        super().__init__(config)
        self.register_buffer("rows", rows)
        self.register_buffer("scales", scales)
        self.register_buffer("positions", positions)

    def forward(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch dim"]:
        factors = attention_mask.float()
        if self.positions is not None:
            factors = factors * at_positions(self.positions, input_ids)
        if self.scales is not None:
            factors = factors * nn.functional.embedding(input_ids, self.scales).squeeze(-1)
        vectors = nn.functional.embedding(input_ids, self.rows).float()
        summed: Tensor = (factors[:, None] @ vectors).squeeze(1)
        return summed


def with_table(model: UnitVectorModel, precision: Precision) -> UnitVectorModel:
    """A static model with a finished table in this precision. It has the same adapter and head."""
    assert isinstance(model.transformer, StaticModel)
    static, config = model.transformer, model.transformer.config
    rows, positions = static.folded(), static.position_weights()
    positions = None if positions is None else positions.detach()
    match precision:
        case "fp32":
            table = _Table(config, rows, positions)
        case "fp16":
            table = _Table(config, rows.half(), positions)
        case "int8":
            scales = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _MAX_INT8
            table = _Table(config, (rows / scales).round().to(torch.int8), positions, scales)
    return UnitVectorModel(table, model.pooling, model.adapter, model.head, model.longest).eval()
