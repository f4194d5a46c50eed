"""The encoder f: a text becomes a unit vector.

A Hugging Face encoder, mean or CLS pooling, and L2 normalisation (RAE-XMC, section 3). Batches hold texts of like
length, so little is spent on padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.errors import EncoderError

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


class UnitVectorModel(nn.Module):
    """Token ids in, unit vectors out: the graph that is trained, exported and served."""

    def __init__(self, transformer: PreTrainedModel, pooling: Pooling) -> None:
        super().__init__()
        self.transformer: PreTrainedModel = transformer
        self.pooling = pooling

    def forward(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch dim"]:
        hidden = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return nn.functional.normalize(pooled, dim=-1)


class Encoder:
    """A model with its tokenizer, on a device.

    Attributes:
        config: Pooling and length limits.
        model: The graph, in evaluation mode.
        tokenizer: Does not pad; where it truncates depends on the latest call.
        dim: Size of a vector.
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
        self.dim = int(model.transformer.config.hidden_size)

    def encode(
        self, texts: Sequence[str], max_length: int, progress: Callable[[int], object] | None = None
    ) -> Float[np.ndarray, "text dim"]:
        """Encode texts, each cut at `max_length` tokens, special tokens included.

        Args:
            texts: Any number; they are batched here.
            max_length: Tokens.
            progress: Told after each batch how many texts it held.

        Raises:
            EncoderError: If the model answers with something that is no finite number.
        """
        tokens = self._tokenise(texts, max_length)
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        for rows in batches_by_length([len(ids) for ids in tokens], _BATCH_TOKENS[self.device]):
            input_ids, attention_mask = self._pad([tokens[row] for row in rows])
            with torch.inference_mode():
                vectors[rows] = self.model(input_ids, attention_mask).float().cpu().numpy()
            if progress:
                progress(len(rows))
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise EncoderError(
                f"{self.config.name}: the vector of {texts[row][:80]!r} is not finite; use another encoder"
            )
        return vectors

    def _tokenise(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        self.tokenizer.enable_truncation(max_length)
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts))]

    def _pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        longest = len(rows[0])
        input_ids = np.full((len(rows), longest), self.pad_id, dtype=np.int64)
        lengths = np.array([len(ids) for ids in rows])
        mask = np.arange(longest) < lengths[:, None]
        input_ids[mask] = np.concatenate(rows)
        return (
            torch.from_numpy(input_ids).to(self.device),
            torch.from_numpy(mask.astype(np.int64)).to(self.device),
        )


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[Int[np.ndarray, " row"]]:
    """Cut rows into batches of like length, longest first, so that memory peaks at once and padding stays small.

    Args:
        lengths: Tokens of each row.
        batch_tokens: Limit of a batch's size, padding included; a longer row is a batch of its own.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // max(1, lengths[order[start]]))
        yield order[start : start + rows]
        start += rows


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
