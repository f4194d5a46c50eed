"""What the claims are measured on: datasets, and static encoders whose training starts from pretrained vectors."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.encoding.checkpoint import save_checkpoint
from recollect.trainer.encoding.encoder import Encoder, UnitVectorModel
from recollect.trainer.encoding.pretrained import load_pretrained
from recollect.trainer.encoding.static_model import StaticModel
from recollect.trainer.static.pretrained import make_static

Entry = dict[str, Any]

# The number of tokens of a text and of a label that the encoders read.
LENGTHS = {"max_length": 32, "label_max_length": 32}
_DIM, _WIDE_DIM, _NARROW_DIM = 64, 128, 28
# The first characters of a text, which have more tokens than an encoder reads.
_CHARACTERS = 240


class Sample(NamedTuple):
    """A dataset folder, and the checkpoint of the encoder that is trained on it."""

    dataset: Path
    encoder: Path


def make_base(dataset: Path, teacher: str) -> Encoder:
    """Make an untrained static encoder from a teacher's vectors of tokens. Frequent words of a dataset weigh less."""
    opened = open_dataset(dataset)
    texts = [opened.read_split("train").entries.texts, opened.labels.texts]
    shortest = 3, 3  # the teacher encodes single tokens only
    source = load_pretrained(teacher, "auto", *shortest, "cpu")
    return make_static(source, "static", LENGTHS["max_length"], LENGTHS["label_max_length"], texts)


def make_samples(
    folder: Path, seed: int, base: Encoder, dataset: Path, texts: int, tests: int, pairs: int
) -> dict[str, Sample]:
    """Write all samples of a seed, by the names that the claims use.

    Args:
        folder: Folder for datasets and encoders.
        seed: Seed of all random draws.
        base: Encoder from which the encoders have their first token vectors.
        dataset: Dataset folder from which texts are drawn.
        texts: Training texts of a drawn sample.
        tests: Test texts of a drawn sample.
        pairs: Labels of a synthetic dataset.
    """
    drawn = _draw(dataset, folder / "drawn", {"train": texts, "test": tests}, seed)
    words = sorted(token for token in base.tokenizer.get_vocab() if token.isascii() and token.isalpha())
    rng = random.Random(seed)
    return {
        "drawn": Sample(drawn, _encoder(base, folder / "pretrained", _DIM)),
        "random vectors": Sample(drawn, _encoder(base, folder / "random", _DIM, seed=seed)),
        "easy label": Sample(
            _easy_label(folder / "easy", rng, words, pairs), _encoder(base, folder / "even", _WIDE_DIM, even=True)
        ),
        "random pairs": Sample(
            _random_pairs(folder / "pairs", rng, words, pairs),
            _encoder(base, folder / "narrow", _NARROW_DIM, even=True),
        ),
    }


def _draw(dataset: Path, folder: Path, sizes: dict[str, int], seed: int) -> Path:
    """A random sample of a dataset, with the labels of all its texts, also those without a training text."""
    rng, labels, used = random.Random(seed), _read(dataset / "labels.jsonl"), set[str]()
    splits = {}
    for name, size in sizes.items():
        entries = _read(dataset / f"{name}.jsonl")
        splits[name] = rng.sample(entries, min(size, len(entries)))
        for entry in splits[name]:
            entry["text"] = entry["text"][:_CHARACTERS]
            entry["labels"] = [label if isinstance(label, str) else labels[label]["uid"] for label in entry["labels"]]
            used.update(entry["labels"])
    return _write(folder, labels=[label for label in labels if label["uid"] in used], **splits)


def _easy_label(folder: Path, rng: random.Random, words: list[str], pairs: int) -> Path:
    """DEXML, section 4.1: the last word of label 0 starts a tenth of the queries, which have four other labels too."""
    first, queries = rng.choice(words), pairs // 5
    labels = [{"text": _text(rng, words)} for _ in range(pairs)]
    labels[0]["text"] += f" {first}"

    def easy() -> str:
        return f"{first} {_text(rng, words).partition(' ')[2]}"

    train = [{"text": easy(), "labels": [0, 1, 2, 3, 4]} for _ in range(queries // 10)]
    others = range(queries * 9 // 10)
    train += [{"text": _text(rng, words), "labels": [rng.randrange(5, len(labels))]} for _ in others]
    test = [{"text": easy(), "labels": [0]} for _ in range(queries)]
    return _write(folder, train=train, test=test, labels=labels)


def _random_pairs(folder: Path, rng: random.Random, words: list[str], pairs: int) -> Path:
    """DEXML, section C.1: a query has one label, and both have random texts. The test split is the training split."""
    train = [{"text": _text(rng, words), "labels": [row]} for row in range(pairs)]
    return _write(folder, train=train, test=train, labels=[{"text": _text(rng, words)} for _ in train])


def _text(rng: random.Random, words: list[str]) -> str:
    """Sixteen random words, as in DEXML's synthetic data."""
    return " ".join(rng.choices(words, k=16))


def _encoder(base: Encoder, folder: Path, dim: int, seed: int | None = None, even: bool = False) -> Path:
    """Write a static encoder with the first principal components of another one's token vectors.

    Args:
        base: The other encoder.
        folder: Checkpoint to write.
        dim: Number of components.
        seed: Seed of random vectors, which replace those of the base. None: the vectors of the base.
        even: Whether all words weigh the same, as in a transformer. Otherwise frequent words weigh less.
    """
    model: Any = base.model.transformer
    vectors, weights = model.tokens.weight.data[:, :dim], model.weights.data.clone()
    if seed is not None:
        vectors = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(seed)) / dim**0.5
    if even:
        weights[np.setdiff1d(np.arange(len(weights)), base.tokenizer.encode("").ids)] = 1.0
    static = StaticModel.of(vectors, weights, len(model.positions))
    model = UnitVectorModel(static, base.model.pooler)
    save_checkpoint(Encoder(base.config, model, base.tokenizer, base.pad_id, base.device), folder)
    return folder


def _read(path: Path) -> list[Entry]:
    """The objects of a file `.jsonl`, or of the same file with `.gz`."""
    packed = path.with_name(f"{path.name}.gz")
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def _write(folder: Path, **files: list[Entry]) -> Path:
    """Write a dataset folder. Entries without a uid get their position."""
    folder.mkdir(parents=True)
    for name, entries in files.items():
        lines = (json.dumps({"uid": str(row)} | entry) + "\n" for row, entry in enumerate(entries))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder
