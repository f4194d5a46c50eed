"""The encoder f: a text becomes a unit vector.

A Hugging Face encoder, mean or CLS pooling, and L2 normalisation (RAE-XMC, section 3). Batches hold texts of like
length, so little is spent on padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.errors import EncoderError
from trainer.heads.adapter import Adapter, Side
from trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from trainer.heads.head import Head
from trainer.tokens import Inputs, Texts, TokenTable, VectorTable, batches_by_length

Pooling = Literal["mean", "cls"]
POOLINGS: tuple[str, ...] = get_args(Pooling)

# Tokens in one batch, padding included: enough to fill the cores or the GPU, few enough to stay in cache or memory.
_BATCH_TOKENS = {"cpu": 2_048, "cuda": 131_072}


@dataclass(frozen=True)
class EncoderConfig:
    """What, beside the weights, decides a text's vector."""

    name: str
    pooling: Pooling
    max_length: int
    label_max_length: int


class UnitVectorModel(DualEncoder):
    """Token ids in, unit vectors out: the graph that is trained, exported and served."""

    def __init__(
        self,
        transformer: PreTrainedModel,
        pooling: Pooling,
        adapter: Adapter | None = None,
        head: Head | None = None,
    ) -> None:
        super().__init__(int(transformer.config.hidden_size), adapter, head)
        self.transformer: PreTrainedModel = transformer
        self.pooling = pooling

    def views(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"],
        side: Side = "queries",
        rows: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch view dim"]:
        hidden = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return self.views_of_vectors(nn.functional.normalize(pooled, dim=-1), side, rows)

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"],
        side: Side = "queries",
        rows: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch key"]:
        return self.key(self.views(input_ids, attention_mask, side, rows))

    def learning(self) -> UnitVectorModel:
        """Itself, with gradients for all weights that have a part in the vectors."""
        self.requires_grad_(True)
        if isinstance(pooler := getattr(self.transformer, "pooler", None), nn.Module):
            pooler.requires_grad_(False)
        return self


class Encoder:
    """A model with its tokenizer, on a device.

    Attributes:
        config: Pooling and length limits.
        model: The graph, in evaluation mode.
        tokenizer: Does not pad; where it truncates depends on the latest call.
        dim: Size of a key.
    """

    def __init__(
        self, config: EncoderConfig, model: UnitVectorModel, tokenizer: Tokenizer, pad_id: int, device: str
    ) -> None:
        self.config = config
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer
        self.tokenizer.no_padding()
        self.pad_id = pad_id
        self.device = device
        self.dim = model.key_dim

    def encode(
        self,
        texts: Sequence[str],
        max_length: int,
        progress: Callable[[int], object] | None = None,
        side: Side = "queries",
        first: int = 0,
    ) -> Float[np.ndarray, "text dim"]:
        """Encode texts, each cut at `max_length` tokens, special tokens included.

        Args:
            texts: Any number; they are batched here.
            max_length: Tokens.
            progress: Told after each batch how many texts it held.
            side: What the texts are; instances are queries. It matters where there is an adapter or a head.
            first: Which label the first text is of; it matters where there is a head.

        Raises:
            EncoderError: If the model answers with something that is no finite number.
        """
        inputs = self.tokenise(texts, max_length, side, first)
        vectors = embed(self.model, inputs, self.dim, self.device, progress)
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise EncoderError(
                f"{self.config.name}: the vector of {texts[row][:80]!r} is not finite; use another encoder"
            )
        return vectors

    def without_adapter(self) -> Encoder:
        """The encoder that adapter and head, if there are any, stand on; the weights are shared."""
        return self.with_adapter(None)

    def with_adapter(self, adapter: Adapter | None, head: Head | None = None) -> Encoder:
        """This encoder's transformer under another adapter and head; the weights are shared."""
        model = UnitVectorModel(self.model.transformer, self.model.pooling, adapter, head)
        return Encoder(self.config, model, self.tokenizer, self.pad_id, self.device)

    def above(self) -> VectorDualEncoder:
        """What stands on the encoder, to read the bare encoder's vectors; the weights are shared."""
        return VectorDualEncoder(self.model.dim, self.model.adapter, self.model.head)

    def refine(self, vectors: Float[np.ndarray, "text dim"]) -> Float[np.ndarray, "text key"]:
        """The keys of queries whose vectors the bare encoder made."""
        queries = VectorTable(torch.from_numpy(np.array(vectors, dtype=np.float32)))
        return embed(self.above().to(self.device).eval(), queries, self.dim, self.device)

    def tokenise(self, texts: Texts, max_length: int, side: Side = "queries", first: int = 0) -> TokenTable:
        table = TokenTable.of(texts, self.tokenizer, max_length, self.pad_id, side)
        return dataclasses.replace(table, first=first)


def embed(
    model: nn.Module,
    inputs: Inputs,
    dim: int,
    device: str,
    progress: Callable[[int], object] | None = None,
    autocast: bool = False,
) -> Float[np.ndarray, "row dim"]:
    """The vectors that a model, in the mode it is in, makes of all rows; nothing is kept for gradients.

    Args:
        model: Takes what `Inputs.batch` gives.
        inputs: All rows.
        dim: Size of a key.
        device: Where the model is.
        progress: Told after each batch how many rows it held.
        autocast: bfloat16 in the matrix products, as in training; a memory's keys are made without.
    """
    vectors = np.empty((len(inputs), dim), dtype=np.float32)
    for rows in batches_by_length(inputs.lengths, _BATCH_TOKENS[device]):
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            vectors[rows] = model(*inputs.batch(rows, device)).float().cpu().numpy()
        if progress:
            progress(len(rows))
    return vectors


def choose_device(device: str) -> str:
    """`auto` becomes `cuda` where there is a GPU.

    Raises:
        EncoderError: If `cuda` is asked for and absent.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise EncoderError("--device cuda: expected a CUDA GPU, found none; use --device cpu")
    return device
