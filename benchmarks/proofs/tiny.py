"""A tiny encoder with random weights, random texts, and a function that trains it with the trainer's own loop."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from transformers import BertConfig, BertModel

from recollect.trainer.data.split import LabelSets
from recollect.trainer.distributed import ALONE
from recollect.trainer.encoding.encoder import Pooling, UnitVectorModel, embed
from recollect.trainer.encoding.tokens import TokenTable
from recollect.trainer.methods import METHODS
from recollect.trainer.recipe import Recipe
from recollect.trainer.training.stopwatch import Stopwatch
from recollect.trainer.training.train import Machine, Task, train
from recollect.trainer.training.validation import Validation

VOCABULARY = 5_000
DIM = 64
_LAYERS, _HEADS = 1, 2


@dataclass(frozen=True)
class Texts:
    """Random texts: rows of token ids of equal length."""

    tokens: Int[np.ndarray, "row token"]

    def table(self) -> TokenTable:
        rows, length = self.tokens.shape
        return TokenTable(self.tokens.reshape(-1).astype(np.int32), length * np.arange(rows + 1), pad_id=0)


def random_texts(random: np.random.Generator, rows: int, tokens: int) -> Int[np.ndarray, "row token"]:
    """Draw random tokens of the vocabulary, except 0 (padding) and 1 (the marker)."""
    return random.integers(2, VOCABULARY, size=(rows, tokens))


def tiny_encoder(seed: int, length: int, pooling: Pooling = "mean") -> UnitVectorModel:
    """An encoder with one transformer layer."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=2 * DIM,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return UnitVectorModel(BertModel(config, add_pooling_layer=False), pooling).trainable()


def train_encoder(
    model: UnitVectorModel,
    queries: Texts,
    labels: Texts,
    label_sets: LabelSets,
    method: str,
    epochs: int,
    batch_size: int = 100,
    learning_rate: float = 2e-3,
    seed: int = 0,
    hard_negatives: int | None = None,
) -> None:
    """Train with a method's loss over all positives of each query.

    The pool is all labels if `hard_negatives` is None, and the labels of the batch if it is 0.
    """
    recipe = Recipe(
        encoder={},
        encoder_sha256="",
        dataset_sha256="",
        method=method,
        train="full",
        steps=epochs * -(-len(label_sets) // batch_size),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        temperature=0.05,
        hard_negatives=hard_negatives,
        mine_every=1,
        mine_top=1,
        mine_search="exact",
        positives=0,
        validation_fraction=0.0,
        label_inputs="text",
        label_key_alpha=0.0,
        precision="fp32",
        seed=seed,
        options=METHODS[method].options(),
    )
    held_out = np.zeros(len(label_sets), dtype=bool)
    nothing = label_sets.where(held_out)
    task = Task(
        model=model,
        queries=queries.table(),
        labels=labels.table(),
        label_sets=label_sets,
        filtered=nothing,
        validation=Validation(held_out, label_sets, len(labels.tokens), 0.0, "cpu", nothing),
        save_best=lambda: None,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(task, recipe, Path(folder), Machine(ALONE, "cpu", save_minutes=1e9), Stopwatch())
    model.eval()


def vectors(model: UnitVectorModel, texts: Texts) -> Float[np.ndarray, "row dim"]:
    return embed(model, texts.table(), DIM, "cpu")


def label_sets(rows: list[list[int]]) -> LabelSets:
    indptr = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return LabelSets(indptr, np.array([label for row in rows for label in sorted(row)], dtype=np.int32))
