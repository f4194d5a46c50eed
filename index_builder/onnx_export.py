"""Export the encoder as an ONNX graph from token ids to unit vectors. The graph includes pooling and normalisation.

The graph is exported without optimisation, so that it runs on any machine. ONNX Runtime optimises the graph for the
machine that opens it.

The graph of a static encoder has one table: token vectors, their weights and projection. A lower precision makes it
smaller: a vocabulary of 30,522 tokens with 384 dimensions takes 47 MB in fp32, 23 MB in fp16 and 12 MB in int8. In
int8, each row has its own scale.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import itertools
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from jaxtyping import Float, Int
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from recollect.core.bundle.files import ENCODER_SERVER
from recollect.core.bundle.manifest import EncoderInfo, Precision
from recollect.core.encoder import QueryEncoder
from recollect.index_builder.errors import BuildError
from recollect.trainer.encoding.encoder import Encoder, UnitVectorModel
from recollect.trainer.encoding.static_model import StaticModel, TextVectors, at_positions
from recollect.trainer.heads.dual_encoder import VectorDualEncoder

_MAX_INT8 = 127
# Least cosine allowed between the vectors of the exported and the trained encoder, for each precision.
WORST_COSINE: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.99}
# The int8 export quantises more finely until the least cosine on the sample reaches this value. The value is above the
# bound for int8, because other texts may have a lower cosine than the sample.
_CLOSE_ENOUGH = 0.991
# Number of inputs that share one scale in a matrix product that is quantised in blocks.
_BLOCK_INPUTS = 64


class _Table(PreTrainedModel, TextVectors):  # type: ignore[no-untyped-call]
    """A table whose rows are summed.

    One matrix product applies the scales of the rows and the weights of the positions, and leaves out the padding.
    """

    rows: Tensor
    scales: Tensor | None
    positions: Tensor

    def __init__(
        self,
        config: PretrainedConfig,
        rows: Tensor,
        positions: Float[Tensor, " position"],
        scales: Float[Tensor, "token 1"] | None = None,
    ) -> None:
        super().__init__(config)
        self.register_buffer("rows", rows)
        self.register_buffer("scales", scales)
        self.register_buffer("positions", positions)

    def forward(
        self, input_ids: Int[Tensor, "batch token"], attention_mask: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "batch dim"]:
        factors = attention_mask.float() * at_positions(self.positions, input_ids)
        if self.scales is not None:
            factors = factors * nn.functional.embedding(input_ids, self.scales).squeeze(-1)
        vectors = nn.functional.embedding(input_ids, self.rows).float()
        summed: Tensor = (factors[:, None] @ vectors).squeeze(1)
        return summed


def with_table(model: UnitVectorModel, precision: Precision) -> UnitVectorModel:
    """A static model with a finished table in this precision. It has the same adapter and head."""
    assert isinstance(model.transformer, StaticModel)
    static, config = model.transformer, model.transformer.config
    rows, positions = static.folded(), static.position_weights().detach()
    match precision:
        case "fp32":
            table = _Table(config, rows, positions)
        case "fp16":
            table = _Table(config, rows.half(), positions)
        case "int8":
            scales = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _MAX_INT8
            table = _Table(config, (rows / scales).round().to(torch.int8), positions, scales)
    return UnitVectorModel(table, model.pooler, model.adapter, model.head, model.normalised).eval()


@dataclass(frozen=True)
class Sample:
    """Texts, and their vectors from the trained encoder."""

    texts: list[str]
    vectors: Float[np.ndarray, "text dim"]


def describe_encoder(encoder: Encoder, precision: Precision, teacher: str | None = None) -> EncoderInfo:
    """The manifest entry of an encoder in this precision. If it was distilled, `teacher` is the encoder of the keys.

    Raises:
        BuildError: If a server gives the vectors, and the precision is not the default.
    """
    if encoder.served is not None:
        if precision != "fp32":
            raise BuildError(
                f"--precision {precision}: expected no such flag for a run whose vectors come from a server, which "
                "decides the precision; omit the flag"
            )
        return EncoderInfo(
            name=encoder.served["model"],  # `GET /version` shows it, but not the address
            pooling=encoder.config.pooling,
            precision="fp16",
            max_length=None,
            pad_id=encoder.pad_id,
            kind="server",
            normalised=encoder.config.normalised,
            query_prompt=encoder.config.query_prompt,
            label_prompt=encoder.config.label_prompt,
        )
    return EncoderInfo(
        name=encoder.config.name,
        pooling=encoder.config.pooling,
        precision=precision,
        max_length=encoder.config.max_length,
        label_max_length=encoder.config.label_max_length,
        pad_id=encoder.pad_id,
        kind="static" if encoder.model.is_static else "transformer",
        teacher=teacher,
        normalised=encoder.config.normalised,
        query_prompt=encoder.config.query_prompt,
        label_prompt=encoder.config.label_prompt,
    )


def export_encoder(encoder: Encoder, folder: Path, info: EncoderInfo, sample: Sample) -> None:
    """Write `encoder.onnx` and `tokenizer.json` of an encoder on the CPU.

    If a server gives the vectors, the graph has the layers above them, and `encoder_server.json` records the server.

    Args:
        info: Manifest entry of the encoder. The precision of the graph is `fp32`, `fp16` (the transformer in half
            precision, for GPUs) or `int8` (weights and activations in eight bits). Of a static encoder, only the
            table of token vectors has this precision.
        sample: Texts and vectors that decide how finely `int8` quantises.

    Raises:
        BuildError: If a number of the encoder is too large for `fp16`.
    """
    if encoder.served is not None:
        (folder / ENCODER_SERVER).write_text(json.dumps(encoder.served) + "\n", encoding="utf-8")
        _export_layers(encoder.vector_model().to("cpu").eval(), folder / "encoder.onnx")
        return
    encoder.tokenizer.enable_truncation(info.tokens)
    encoder.tokenizer.save(str(folder / "tokenizer.json"))
    model, path = encoder.model, folder / "encoder.onnx"
    match info.precision:
        case _ if model.is_static:
            _export_graph(with_table(model, info.precision), path)
        case "fp32":
            _export_graph(model, path)
        case "fp16":
            _export_graph(_in_half(model), path)
            _check_range(folder, info, sample)
        case "int8":
            _export_quantised(model, folder, info, sample)


def cosines(first: Float[np.ndarray, "text dim"], second: Float[np.ndarray, "text dim"]) -> Float[np.ndarray, " text"]:
    """Cosine between the two vectors of each text, computed in float64."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    product: np.ndarray = (first * second).sum(axis=1) / norms
    return product


def _export_graph(model: UnitVectorModel, path: Path) -> None:
    batch, token = torch.export.Dim("batch", min=1), torch.export.Dim("token", min=1)
    example = torch.ones((2, 8), dtype=torch.int64)
    with quiet():
        torch.onnx.export(
            model,
            (example, example.clone()),  # a clone, because one tensor used twice would become one input of the graph
            path,
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_shapes={name: {0: batch, 1: token} for name in ("input_ids", "attention_mask")},
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _export_layers(model: VectorDualEncoder, path: Path) -> None:
    """Export the adapter and the head of queries; without both, the graph returns its input."""
    with quiet():
        torch.onnx.export(
            model,
            (torch.ones((2, model.dim)),),
            path,
            input_names=["text_vectors"],
            output_names=["vectors"],
            dynamic_shapes={"vectors": {0: torch.export.Dim("batch", min=1)}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _in_half(model: UnitVectorModel) -> UnitVectorModel:
    """A copy with a transformer in half precision, whose output has single precision."""
    half = copy.deepcopy(model.transformer)
    for weights in half.parameters():
        weights.data = weights.data.half()
    half.register_forward_hook(lambda _, inputs, output: BaseModelOutput(output.last_hidden_state.float()))
    return UnitVectorModel(half, model.pooler, model.adapter, model.head, model.normalised).eval()


def _check_range(folder: Path, info: EncoderInfo, sample: Sample) -> None:
    """Refuse an encoder whose numbers exceed half precision, because its vectors would be NaN."""
    vectors = QueryEncoder.open(folder, info, torch.get_num_threads()).encode_texts(sample.texts)
    if wrong := np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
        raise BuildError(
            f"--precision fp16: expected numbers up to 65,504 in {info.name}, found larger ones for "
            f"{sample.texts[wrong[0]][:60]!r}; use --precision fp32, also on GPUs"
        )


def _export_quantised(model: UnitVectorModel, folder: Path, info: EncoderInfo, sample: Sample) -> None:
    """Quantise to int8 as coarsely as the sample allows, because coarse quantisation is faster.

    The coarse form of a matrix product has one scale for the activations of the whole batch. A few activations in a
    feed-forward layer are huge. So the second (narrowing) product of the layer loses most precision, then the first
    (widening) product, and the first layers of the encoder lose more than the last. The fine form quantises blocks of
    inputs, each with its own scale. It loses a tenth of that precision and takes 1.5 times as long. A bisection finds
    the smallest number of products in the fine form; products with the largest loss get it first.

    The weights of the coarse form have seven bits. A CPU without VNNI adds two products of an activation and a weight
    in 16 bits, and weights of eight bits would overflow them.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        full, trial = Path(scratch) / "full.onnx", Path(scratch)
        _export_graph(model, full)
        shutil.copy(folder / "tokenizer.json", trial)

        def close_enough() -> bool:
            encoder = QueryEncoder.open(trial, info, torch.get_num_threads())
            vectors = encoder.encode_texts(sample.texts)
            return bool(cosines(vectors, sample.vectors).min(initial=1) >= _CLOSE_ENOUGH)

        quantise_until(full, trial / "encoder.onnx", close_enough)
        shutil.move(trial / "encoder.onnx", folder / "encoder.onnx")


def quantise_until(full: Path, path: Path, close_enough: Callable[[], bool]) -> None:
    """Quantise a graph as coarsely as possible; see `_export_quantised`.

    Args:
        full: The graph in single precision.
        path: The quantised graph. Each trial replaces it.
        close_enough: Whether the graph that is at `path` now is close enough to the full one.
    """
    weights = _product_weights(onnx.load(full).graph)
    narrowing = [name for name, (inputs, outputs) in weights.items() if inputs > outputs]
    widening = [name for name, (inputs, outputs) in weights.items() if inputs < outputs]
    in_pairs = [name for pair in itertools.zip_longest(narrowing, widening) for name in pair if name]
    lossy = [*in_pairs, *(name for name in weights if name not in in_pairs)]  # largest loss first

    def is_close(in_blocks: set[str]) -> bool:
        _quantise(full, path, in_blocks)
        return close_enough()

    choices = [set(lossy[:count]) for count in range(len(lossy))]
    coarsest = bisect.bisect_left(choices, True, key=is_close)
    _quantise(full, path, set(lossy[:coarsest]))


def _product_weights(graph: Any) -> dict[str, tuple[int, int]]:
    """The numbers of inputs and outputs of each matrix product with weights, by name, in the order of the layers."""
    shapes = {weights.name: tuple(weights.dims) for weights in graph.initializer}
    return {
        node.name: shapes[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul" and len(shapes.get(node.input[1], ())) == 2
    }


def _quantise(full: Path, path: Path, in_blocks: set[str]) -> None:
    model = onnx.load(full)
    del model.graph.value_info[:]  # the recorded shapes would be wrong, because the quantiser transposes weights
    with quiet():
        quantize_dynamic(
            model,
            path,
            per_channel=True,
            weight_type=QuantType.QInt8,
            reduce_range=True,
            nodes_to_exclude=sorted(in_blocks),
        )
        if not in_blocks:
            return
        model = onnx.load(path)
        quantiser = MatMulNBitsQuantizer(
            model,
            bits=8,
            block_size=_BLOCK_INPUTS,
            is_symmetric=False,
            accuracy_level=4,  # level 4: activations in eight bits too
            nodes_to_exclude=[node.name for node in model.graph.node if node.name not in in_blocks],
        )
        quantiser.process()
        onnx.save(quantiser.model.model, path)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the messages that the export libraries print."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
