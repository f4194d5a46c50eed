"""The encoder f, which maps a text to a unit vector.

A Hugging Face encoder, pooling, and L2 normalisation (RAE-XMC, section 3).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from recollect.trainer.encoding.pooling import Layer, Pooler
from recollect.trainer.encoding.static_model import StaticModel, TextVectors
from recollect.trainer.encoding.tokens import Inputs, Texts, TokenBags, TokenTable, VectorTable, batches_by_length
from recollect.trainer.errors import EncoderError
from recollect.trainer.heads.adapter import Adapter, Side
from recollect.trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from recollect.trainer.heads.head import Head
from recollect.trainer.held_out import ALL, HeldOutTexts

# Precision of the matrix products of an encoder's transformer.
EncodingPrecision = Literal["fp32", "bf16"]

# Tokens in one batch, including padding: enough to use all cores or the GPU, and few enough to fit into the CPU cache
# or the GPU memory.
_BATCH_TOKENS = {"cpu": 2_048, "cuda": 131_072}


@dataclass(frozen=True)
class EncoderConfig:
    """The settings that, together with the weights, determine the vector of a text, and the origin of the weights.

    Attributes:
        pooling: Combination of the token vectors, as in `Pooler`.
        normalised: Whether vectors are unit vectors. Otherwise they keep their lengths.
        layers: Layers after the pooling, as in `Pooler`.
        label_alpha: Weight of the instances in the vectors of labels that adapter and head read, as in `LabelInputs`.
            None: there are none, or they were not trained on vectors.
        held_out: The texts from which the weights have not learnt.
    """

    name: str
    pooling: str
    max_length: int
    label_max_length: int
    normalised: bool = True
    layers: list[Layer] = field(default_factory=list)
    query_prompt: str = ""
    label_prompt: str = ""
    label_alpha: float | None = None
    held_out: HeldOutTexts = ALL

    @classmethod
    def of_json(cls, saved: dict[str, Any]) -> EncoderConfig:
        """Read settings that `as_json` wrote.

        Raises:
            TypeError, ValueError: If they are others.
        """
        return cls(**(saved | {"held_out": HeldOutTexts.of_json(saved.get("held_out"))}))

    def as_json(self) -> dict[str, Any]:
        """The settings, without empty ones, so that they equal those of runs that were written without them."""
        settings = vars(self) | {"held_out": None if self.held_out == ALL else self.held_out.as_json()}
        return {name: value for name, value in settings.items() if value not in ("", [], None)}

    def prompt(self, side: Side) -> str:
        return self.label_prompt if side == "labels" else self.query_prompt


class UnitVectorModel(DualEncoder):
    """The model from token ids to unit vectors, which is trained, exported and served."""

    def __init__(
        self,
        transformer: PreTrainedModel,
        pooler: Pooler,
        adapter: Adapter | None = None,
        head: Head | None = None,
        normalised: bool = True,
    ) -> None:
        super().__init__(pooler.dim(int(transformer.config.hidden_size)), adapter, head, normalised)
        self.transformer: PreTrainedModel = transformer
        self.pooler = pooler

    def views(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"],
        side: Side = "queries",
        rows: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch view dim"]:
        pooled = self._pool(input_ids, attention_mask)
        return self.views_of_vectors(self.normalise(pooled), side, rows)

    def _pool(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch dim"]:
        if self.is_static:
            summed: Tensor = self.transformer(input_ids, attention_mask)
            return summed
        hidden: Tensor = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled: Tensor = self.pooler(hidden, attention_mask)
        return pooled

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"],
        side: Side = "queries",
        rows: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch key"]:
        return self.key(self.views(input_ids, attention_mask, side, rows))

    @property
    def is_static(self) -> bool:
        """Whether a table of token vectors is in the place of the transformer."""
        return isinstance(self.transformer, TextVectors)

    def lookups(self) -> list[nn.Parameter]:
        return [*super().lookups(), *(self.transformer.lookups() if isinstance(self.transformer, StaticModel) else [])]

    def trainable(self) -> UnitVectorModel:
        """This model, with gradients enabled for all weights that influence the vectors."""
        self.requires_grad_(True)
        if isinstance(pooler := getattr(self.transformer, "pooler", None), nn.Module):
            pooler.requires_grad_(False)
        return self


class Encoder:
    """A model with its tokenizer, on a device.

    Attributes:
        tokenizer: The tokenizer. It does not pad. It truncates texts to the `max_length` of the latest call.
        served: The server that gives the vectors, as JSON; it has the tokenizer and the transformer. None: this encoder
            has both.
        precision: The precision in which the transformer encodes.
    """

    served: dict[str, Any] | None = None
    precision: EncodingPrecision = "fp32"

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
        """Encode texts in batches.

        Args:
            max_length: Number of tokens, including special tokens, to which each text is truncated.
            side: Whether the texts are queries (instances count as queries) or labels. Adapters and heads treat both
                differently.
            first: Label position of the first text. A head may have weights for each label position.

        Raises:
            EncoderError: If a vector is not finite.
        """
        inputs = self.tokenise(texts, max_length, side, first)
        if self.precision == "fp32":
            vectors = embed(self.model, inputs, self.dim, self.device, progress)
        else:  # the lengths of the vectors, the adapter and the head keep full precision
            pooled = self.layered(None, None, normalised=False).eval()
            below = embed(pooled, inputs, self.model.dim, self.device, progress, autocast=True)
            vectors = self._embed_above(VectorTable(self.model.normalise(torch.from_numpy(below)), side, first))
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise EncoderError(
                f"{self.config.name}: the vector of {texts[row][:80]!r} is not finite; use another encoder"
            )
        return vectors

    def without_adapter(self) -> Encoder:
        """This encoder without adapter and head. The weights are shared."""
        return self.with_adapter(None)

    def with_adapter(
        self, adapter: Adapter | None, head: Head | None = None, label_alpha: float | None = None
    ) -> Encoder:
        """This encoder with another adapter and head, which read labels with `label_alpha`.

        The weights of the transformer are shared.
        """
        config = dataclasses.replace(self.config, label_alpha=label_alpha)
        return self.replaced(config, self.layered(adapter, head, self.model.normalised))

    def trained_without(self, held_out: HeldOutTexts) -> Encoder:
        """This encoder, as one that has not learnt from the held-out texts. The weights are shared."""
        return self.replaced(dataclasses.replace(self.config, held_out=held_out))

    def in_precision(self, precision: EncodingPrecision) -> Encoder:
        """This encoder, whose transformer encodes in another precision. The weights are shared."""
        encoder = copy.copy(self)
        encoder.precision = precision
        return encoder

    def without_normalisation(self) -> Encoder:
        """This encoder with vectors that keep their lengths. The weights are shared."""
        return self.replaced(dataclasses.replace(self.config, normalised=False), self.layered(None, None, False))

    def replaced(self, config: EncoderConfig, model: UnitVectorModel | None = None) -> Encoder:
        """This encoder with other settings, and with another model unless it is None."""
        return Encoder(config, self.model if model is None else model, self.tokenizer, self.pad_id, self.device)

    def layered(self, adapter: Adapter | None, head: Head | None, normalised: bool) -> UnitVectorModel:
        """A model with another adapter and head. The weights of the transformer are shared."""
        return UnitVectorModel(self.model.transformer, self.model.pooler, adapter, head, normalised)

    def vector_model(self) -> VectorDualEncoder:
        """The adapter and head, as a model from vectors of the bare encoder to keys. The weights are shared."""
        return VectorDualEncoder(self.model.dim, self.model.adapter, self.model.head)

    def refine(self, vectors: Float[np.ndarray, "text dim"]) -> Float[np.ndarray, "text key"]:
        """The keys of queries, from the vectors of the bare encoder."""
        return self._embed_above(VectorTable(torch.from_numpy(np.array(vectors, dtype=np.float32))))

    def _embed_above(self, vectors: VectorTable) -> Float[np.ndarray, "text key"]:
        return embed(self.vector_model().to(self.device).eval(), vectors, self.dim, self.device)

    def tokenise(self, texts: Texts, max_length: int, side: Side = "queries", first: int = 0) -> TokenTable:
        """Tokenise texts, with the prompt of their side before each text."""
        kind = TokenBags if self.model.is_static else TokenTable
        table = kind.of(texts, self.tokenizer, max_length, self.pad_id, side, self.config.prompt(side))
        return dataclasses.replace(table, first=first)


def embed(
    model: nn.Module,
    inputs: Inputs,
    dim: int,
    device: str,
    progress: Callable[[int], object] | None = None,
    autocast: bool = False,
) -> Float[np.ndarray, "row dim"]:
    """The keys of all rows, in batches and without gradients. The mode of the model does not change.

    Args:
        autocast: Use bfloat16 in matrix products.
    """
    vectors = np.empty((len(inputs), dim), dtype=np.float32)
    for rows in batches_by_length(inputs.lengths, _BATCH_TOKENS[device], device=device):
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            vectors[rows] = model(*inputs.batch(rows, device)).float().cpu().numpy()
        if progress:
            progress(len(rows))
    return vectors


def choose_device(device: str) -> str:
    """Replace `auto` by `cuda` if there is a GPU, else by `cpu`.

    Raises:
        EncoderError: If `device` is `cuda` and there is no GPU.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise EncoderError("--device cuda: expected a CUDA GPU, found none; use --device cpu")
    return device
