"""The encoder as an ONNX graph: token ids in, unit vectors out, pooling and normalisation inside."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from onnxruntime.quantization import QuantType, quantize_dynamic

from trainer.encoder import Encoder, UnitVectorModel


def export_encoder(encoder: Encoder, folder: Path, precision: str) -> None:
    """Write `encoder.onnx` and `tokenizer.json`.

    Args:
        encoder: On the CPU.
        folder: An existing folder.
        precision: `fp32`, or `int8`: weights in eight bits a channel, activations quantised as they come.
    """
    encoder.tokenizer.enable_truncation(encoder.config.max_length)
    encoder.tokenizer.save(str(folder / "tokenizer.json"))
    if precision == "fp32":
        _export_graph(encoder.model, folder / "encoder.onnx")
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch, _quiet():
        full = Path(scratch) / "fp32.onnx"
        _export_graph(encoder.model, full)
        quantize_dynamic(full, folder / "encoder.onnx", per_channel=True, weight_type=QuantType.QInt8)


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
