"""The ONNX graph of a static encoder gives the vectors of PyTorch in every precision, alone and in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from recollect.core.bundle.manifest import Precision
from recollect.core.encoder import QueryEncoder
from recollect.index_builder.onnx_export import (
    WORST_COSINE,
    Sample,
    cosines,
    describe_encoder,
    export_encoder,
    with_table,
)
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.pretrained import load_pretrained
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.static.pretrained import make_static
from tests.tiny_runs import write_tiny_encoder

TEXTS = ["a", "", "the tax on bread", "x" * 500, "é 音楽", "two  spaces\tand\nlines", "word " * 40] * 6


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A static encoder with random weights of positions, a random projection and a classifier head."""
    source = write_tiny_encoder(tmp_path_factory.mktemp("source"), "bert")
    made = make_static(load_pretrained(str(source), "mean", 16, 16, "cpu"), "static", 64, 16, [TEXTS])
    torch.manual_seed(7)
    nn.init.normal_(made.model.transformer.positions, std=0.05)
    nn.init.normal_(made.model.transformer.projection.weight, std=0.2)
    adapter = Adapter(made.dim, 8)
    nn.init.normal_(adapter.queries.narrow.weight, std=0.1)
    return made.with_adapter(adapter, Classifier(made.dim, 6))


def export(encoder: Encoder, folder: Path, precision: Precision) -> QueryEncoder:
    info = describe_encoder(encoder, precision)
    assert info.kind == "static"
    export_encoder(encoder, folder, info, Sample([], np.empty((0, encoder.dim), np.float32)))
    return QueryEncoder.open(folder, info, threads=1)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_graph_gives_the_vectors_of_the_trained_encoder(encoder: Encoder, tmp_path: Path, precision: Precision) -> None:
    opened = export(encoder, tmp_path, precision)
    vectors, expected = opened.encode(opened.tokenise(TEXTS)), encoder.encode(TEXTS, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert cosines(vectors, expected).min() >= WORST_COSINE[precision]
    alone = np.concatenate([opened.encode(opened.tokenise([text])) for text in TEXTS])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("fp16", 2), ("int8", 1)])
def test_precision_decides_the_size_of_a_number_in_the_table(encoder: Encoder, precision: Precision, size: int) -> None:
    rows = with_table(encoder.model, precision).transformer.rows
    assert rows.element_size() == size
