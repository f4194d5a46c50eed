"""docs/reproducing.md: its commands for DEXML's released checkpoints, run on tiny checkpoints with the same layout."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import recollect
from tests.conftest import TOPICS
from tests.formula import label_scores
from tests.test_docs import DOCS, blocks
from tests.tiny_runs import write_tiny_encoder

LENGTH = 32
# The datasets of the page, and whether the checkpoint ends with a layer that makes unit vectors.
NORMALISED = {"LF-AmazonTitles-131K": True, "LF-AmazonTitles-1.3M": False}


def write_checkpoint(folder: Path, normalised: bool) -> Path:
    """Write the files that the released checkpoints have: DistilBERT, cls pooling, and Normalize or nothing."""
    weights = write_tiny_encoder(folder, "distilbert") / "model.safetensors"
    tensors = load_file(weights)
    for name in [name for name in tensors if name.endswith("output_layer_norm.weight")]:
        tensors[name] = torch.logspace(-1, 1, len(tensors[name]))  # vectors of different lengths, as after training
    save_file(tensors, weights, {"format": "pt"})
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalised else [])]
    listed = [
        {"idx": row, "name": str(row), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for row, (path, kind) in enumerate(modules)
    ]
    kinds = ("mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    files: dict[str, Any] = {
        "modules.json": listed,
        "sentence_bert_config.json": {"max_seq_length": LENGTH, "do_lower_case": False},
        "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
        "1_Pooling/config.json": pooling | {f"pooling_mode_{kind}": False for kind in kinds},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=4))
    return folder


def write_dataset(folder: Path) -> dict[str, list[Any]]:
    """Write the topics in the layout of the XMC repository, and return the titles and labels of each split."""
    labels = [*TOPICS]
    texts: dict[str, list[Any]] = {"trn": [], "tst": [], "lbl": [(label, []) for label in labels]}
    for row, sentences in enumerate(TOPICS.values()):
        for nth, sentence in enumerate(sentences):
            texts["tst" if nth % 2 else "trn"].append((sentence, [row]))
    folder.mkdir()
    for split, rows in texts.items():
        lines = [
            {"uid": f"{split}{row}", "title": title, "content": "not a title", "target_ind": own}
            for row, (title, own) in enumerate(rows)
        ]
        (folder / f"{split}.json.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return texts


def expected(checkpoint: Path, texts: dict[str, list[Any]], lambda_: float, temperature: float) -> dict[str, float]:
    """P@1 and P@5 in percent, of the labels with the highest scores by the formula."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(checkpoint), device="cpu")
    queries, instances, labels = (
        np.asarray(model.encode([title for title, _ in texts[split]]), dtype=np.float64)
        for split in ("tst", "trn", "lbl")
    )
    lengths = np.linalg.norm(queries, axis=1)
    assert np.allclose(lengths, 1) == (temperature != 1)
    y = np.array([np.isin(np.arange(len(labels)), own) for _, own in texts["trn"]], dtype=float)
    best = np.argsort(-label_scores(queries, instances, labels, y, lambda_, temperature), axis=1)
    hits = np.array([np.isin(row, own) for row, (_, own) in zip(best, texts["tst"], strict=True)])
    return {f"P@{k}": 100 * hits[:, :k].sum(axis=1).mean() / k for k in (1, 5)}


@pytest.mark.parametrize("dataset", NORMALISED)
def test_commands_measure_a_released_checkpoint_without_training(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts, checkpoint = write_dataset(tmp_path / dataset), write_checkpoint(tmp_path / "encoder", NORMALISED[dataset])
    (block,) = (each.text for each in blocks(DOCS / "reproducing.md") if f"{dataset.lower()}-dexml" in each.text)
    more = {"train": ["--encoder", str(checkpoint)], "evaluate": ["--json"]}
    for command in block.replace("\\\n", " ").splitlines():
        _, verb, *words = shlex.split(command)
        capsys.readouterr()
        assert recollect.main([verb, *words, *more.get(verb, [])]) == 0, command
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["lambda"] for row in rows] == ([0] if NORMALISED[dataset] else [0, 0.5])
    for row in rows:
        right = expected(checkpoint, texts, row["lambda"], row["temperature"])
        assert {name: row[name] for name in right} == pytest.approx(right, abs=0.01), row["lambda"]
