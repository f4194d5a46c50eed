"""Fixtures of several folders: runs with tiny encoders, which can be exported in seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.conftest import made_once
from tests.processes import copy_store
from tests.service.stores import add_version, make_first

if TYPE_CHECKING:
    from recollect.trainer.encoding.encoder import UnitVectorModel

SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    "distilbert": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64},
}


def write_tiny_encoder(folder: Path, kind: str) -> Path:
    """Write a randomly initialised Hugging Face encoder. Each character of a text is one token."""
    import torch
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {token: row for row, token in enumerate([*special, *map(chr, range(32, 127))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=len(vocabulary),
        pad_token_id=0,
        max_position_embeddings=128,
        initializer_range=0.5,
        **SIZES[kind],
    )
    torch.manual_seed(7)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_run(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the topics with a tiny BERT. Tests must not change this run."""

    def train(folder: Path) -> None:
        from transformers.utils import logging

        from recollect.trainer.run import write_run
        from recollect.trainer.train_settings import TrainSettings

        logging.disable_progress_bar()
        encoder, run = str(write_tiny_encoder(folder / "encoder", "bert")), folder / "run"
        write_run(TrainSettings(epochs=0, dataset=built.dataset, out=run, encoder=encoder, max_length=64))

    return made_once(tmp_path_factory, "tiny", train) / "run"


@pytest.fixture(scope="session")
def exported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the exported tiny encoder."""

    def export(folder: Path) -> None:
        from recollect.index_builder.onnx_export import Sample, describe_encoder, export_encoder
        from recollect.trainer.encoding.checkpoint import load_checkpoint

        encoder = load_checkpoint(tiny_run / "checkpoint", "cpu")
        nothing = Sample([], np.empty((0, encoder.dim), dtype=np.float32))
        export_encoder(encoder, folder, describe_encoder(encoder, "fp32"), nothing)

    return made_once(tmp_path_factory, "exported", export)


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the graphs that `export_once` has exported."""
    return made_once(tmp_path_factory, "graphs", lambda _: None)


@pytest.fixture
def export_once(graphs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export equal models once, and copy the graph the next time, because an export takes seconds."""
    from recollect.index_builder import onnx_export

    export_graph = onnx_export._export_graph

    def export(model: UnitVectorModel, path: Path) -> None:
        digest = hashlib.sha256(repr(model).encode())
        for name, weights in model.state_dict().items():
            digest.update(name.encode() + weights.numpy().tobytes())
        graph = graphs / digest.hexdigest()
        if not graph.exists():
            export_graph(model, path)
            shutil.copy(path, partial := graphs / f"{digest.hexdigest()}.{os.getpid()}")
            partial.rename(graph)
        else:
            shutil.copy(graph, path)

    monkeypatch.setattr(onnx_export, "_export_graph", export)


@pytest.fixture
def quick_export(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`build` copies the exported tiny encoder instead of exporting the encoder of the tiny run."""

    def copy(encoder: object, folder: Path, *_: object) -> None:
        shutil.copytree(exported, folder, dirs_exist_ok=True)

    monkeypatch.setattr("recollect.index_builder.build.export_encoder", copy)


@pytest.fixture
def quick_road_export(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_road_export(built, monkeypatch)


def copy_road_export(built: Any, patch: pytest.MonkeyPatch) -> None:
    """Let `build` copy the encoder of the bundle in the shared store instead of exporting the encoder of its run."""

    def copy(encoder: object, folder: Path, *_: object) -> None:
        for name in ("encoder.onnx", "tokenizer.json"):
            shutil.copy(built.store / "bundles" / built.version / name, folder)

    patch.setattr("recollect.index_builder.build.export_encoder", copy)


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the tiny run that a test may change."""
    return shutil.copytree(tiny_run, tmp_path / "run")


@pytest.fixture
def change_array(run: Path) -> Callable[[str, Callable[[np.ndarray], Any]], None]:
    """A function that changes an array of the run's memory in place."""

    def change(name: str, edit: Callable[[np.ndarray], Any]) -> None:
        array = np.load(run / "memory" / name)
        edit(array)
        np.save(run / "memory" / name, array)

    return change


@pytest.fixture
def with_probabilities(built: Any, tmp_path: Path) -> Path:
    """A store whose current version gives probabilities."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["probabilities"] = {
            "calibration": {"method": "platt", "slope": 1.0, "intercept": 0.0},
            "texts": 100,
            "metrics": {},
            "mean_top_probability": 0.5,
            "coverage": [{"share": 0.5, "probability": 0.4}, {"share": 0.9, "probability": 0.01}],
        }

    store = copy_store(built.store, tmp_path / "store")
    make_first(store, add_version(store, built.version, "p", change))
    return store
