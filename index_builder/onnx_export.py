"""The encoder as an ONNX graph: token ids in, unit vectors out, pooling and normalisation inside.

Graphs are written as exported, portable: ONNX Runtime fuses their layers for its machine when it opens them.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import itertools
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from jaxtyping import Float
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from service.bundle.manifest import EncoderInfo, Precision
from service.predictor.encoder import QueryEncoder
from trainer.encoder import Encoder, UnitVectorModel

# The worst cosine to the trained encoder's vectors that a precision may bring.
WORST_COSINE: dict[Precision, float] = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.99}
# Where quantising stops to get finer: closer than it must be, as other texts come out worse than the sample's.
_CLOSE_ENOUGH = 0.991
# Inputs of a product that share a scale where it is quantised in blocks.
_BLOCK_INPUTS = 64


@dataclass(frozen=True)
class Sample:
    """Some texts, and the trained encoder's vectors of them."""

    texts: list[str]
    vectors: Float[np.ndarray, "text dim"]


def describe_encoder(encoder: Encoder, precision: Precision) -> EncoderInfo:
    """What the manifest says of an encoder that is exported in this precision."""
    return EncoderInfo(
        name=encoder.config.name,
        pooling=encoder.config.pooling,
        precision=precision,
        max_length=encoder.config.max_length,
        pad_id=encoder.pad_id,
    )


def export_encoder(encoder: Encoder, folder: Path, info: EncoderInfo, sample: Sample) -> None:
    """Write `encoder.onnx` and `tokenizer.json`.

    Args:
        encoder: On the CPU.
        folder: An existing folder.
        info: With the precision: `fp32`; `fp16`: the transformer in half precision, for GPUs; `int8`: weights and
            activations in eight bits, as coarsely as the sample's vectors allow.
        sample: What `int8` is held against.
    """
    encoder.tokenizer.enable_truncation(info.max_length)
    encoder.tokenizer.save(str(folder / "tokenizer.json"))
    match info.precision:
        case "fp32":
            _export_graph(encoder.model, folder / "encoder.onnx")
        case "fp16":
            _export_graph(_in_half(encoder.model), folder / "encoder.onnx")
        case "int8":
            _export_quantised(encoder.model, folder, info, sample)


def cosines(first: Float[np.ndarray, "text dim"], second: Float[np.ndarray, "text dim"]) -> Float[np.ndarray, " text"]:
    """Cosine of each text's two vectors, in float64."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    product: np.ndarray = (first * second).sum(axis=1) / norms
    return product


def _export_graph(model: UnitVectorModel, path: Path) -> None:
    batch, token = torch.export.Dim("batch", min=1), torch.export.Dim("token", min=1)
    example = torch.ones((2, 8), dtype=torch.int64)
    with _quiet():
        torch.onnx.export(
            model,
            (example, example.clone()),  # one tensor given twice would become one input
            path,
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_shapes={name: {0: batch, 1: token} for name in ("input_ids", "attention_mask")},
            dynamo=True,
            external_data=False,
            verbose=False,
        )


class _Half(nn.Module):
    """A transformer in half precision, between ids and vectors in single precision."""

    def __init__(self, transformer: PreTrainedModel) -> None:
        super().__init__()
        self.config = transformer.config
        self.transformer: nn.Module = copy.deepcopy(transformer)
        for weights in self.transformer.parameters():
            weights.data = weights.data.half()

    def forward(self, **inputs: Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.transformer(**inputs).last_hidden_state.float())


def _in_half(model: UnitVectorModel) -> UnitVectorModel:
    half = cast(PreTrainedModel, _Half(model.transformer))
    return UnitVectorModel(half, model.pooling, model.adapter, model.head).eval()


def _export_quantised(model: UnitVectorModel, folder: Path, info: EncoderInfo, sample: Sample) -> None:
    """Quantise as coarsely as the sample allows: what is coarser is quicker.

    Activations have one scale for all of a batch, and few of them, behind the activation function of a feed-forward
    layer, are huge: the product that takes those and narrows loses most of what is lost, then the one that widens, in
    the first layers above all. In blocks of inputs, each with its own scale, a product loses a tenth of that, and takes
    half as long again.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        full, trial = Path(scratch) / "full.onnx", Path(scratch)
        _export_graph(model, full)
        shutil.copy(folder / "tokenizer.json", trial)

        def close_enough(in_blocks: set[str]) -> bool:
            _quantise(full, trial / "encoder.onnx", in_blocks)
            encoder = QueryEncoder(trial, info, torch.get_num_threads())
            vectors = encoder.encode(encoder.tokenise(sample.texts))
            return bool(cosines(vectors, sample.vectors).min(initial=1) >= _CLOSE_ENOUGH)

        weights = _product_weights(onnx.load(full).graph)
        narrowing = [name for name, (inputs, outputs) in weights.items() if inputs > outputs]
        widening = [name for name, (inputs, outputs) in weights.items() if inputs < outputs]
        in_pairs = [name for pair in itertools.zip_longest(narrowing, widening) for name in pair if name]
        lossy = [*in_pairs, *(name for name in weights if name not in in_pairs)]  # what loses most comes first
        choices = [set(lossy[:count]) for count in range(len(lossy))]
        coarsest = bisect.bisect_left(choices, True, key=close_enough)
        _quantise(full, folder / "encoder.onnx", set(lossy[:coarsest]))


def _product_weights(graph: Any) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each product with weights, by its name, first layer first."""
    shapes = {each.name: tuple(each.dims) for each in graph.initializer}
    return {
        node.name: shapes[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul" and len(shapes.get(node.input[1], ())) == 2
    }


def _quantise(full: Path, path: Path, in_blocks: set[str]) -> None:
    model = onnx.load(full)
    del model.graph.value_info[:]  # the quantiser turns weights around, and infers all shapes itself
    with _quiet():
        quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QInt8, nodes_to_exclude=sorted(in_blocks))
        if not in_blocks:
            return
        model = onnx.load(path)
        quantiser = MatMulNBitsQuantizer(
            model,
            bits=8,
            block_size=_BLOCK_INPUTS,
            is_symmetric=False,
            accuracy_level=4,  # activations in eight bits too
            nodes_to_exclude=[node.name for node in model.graph.node if node.name not in in_blocks],
        )
        quantiser.process()
        onnx.save(quantiser.model.model, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own progress and advice off the user's terminal."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
