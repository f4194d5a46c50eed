"""Fixtures of the trainer's tests: real dataset folders, and small real encoders saved as Hugging Face folders."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import recollect
from tests.trainer.runs import USUAL, Outcome, Train, untrained

# Words for the tiny tokenizers. Upper case and accents show in the vectors how a tokenizer normalises text.
CORPUS = ("The quick Brown fox jumps over the lazy dog", "Café naïve ABC abc", "paint lawn garden chair red blue")
LABELS = ("garden chair", "red paint", "blue lawn", "quick dog", "lazy fox")
_WORDS = " ".join(CORPUS).split()
TEXTS = tuple(" ".join(_WORDS[start : start + 3]) for start in range(14))


# Texts for comparing encoders: with upper case, with accents, of one letter, and longer than any limit.
SAMPLE_TEXTS = ["quick Brown fox", "Café naïve ABC abc", "x", "lazy dog " * 30]


@pytest.fixture
def write_lines() -> Callable[..., Path]:
    """Write a file of lines, with gzip if its name ends in .gz. Records become JSON, str and bytes stay unchanged."""

    def write(path: Path, lines: Sequence[Any]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
            for line in lines:
                text = line if isinstance(line, (str, bytes)) else json.dumps(line, ensure_ascii=False)
                file.write((text if isinstance(text, bytes) else text.encode()) + b"\n")
        return path

    return write


@pytest.fixture
def toy(tmp_path: Path, write_lines: Callable[..., Path]) -> Path:
    """A native dataset folder: 14 instances of several lengths and 5 labels. The last instance has no label."""
    folder = tmp_path / "toy"
    write_lines(folder / "labels.jsonl", [{"uid": f"L{row}", "text": text} for row, text in enumerate(LABELS)])
    instances = [
        {"uid": f"i{row}", "text": " ".join([text] * (1 + row % 4)), "labels": [row % 5, (row * 3) % 5]}
        for row, text in enumerate(TEXTS)
    ]
    instances[-1]["labels"] = []
    write_lines(folder / "train.jsonl", instances)
    return folder


class TinyEncoder(NamedTuple):
    """The Hugging Face folder of a randomly initialised encoder, and its tokenizer."""

    folder: Path
    tokenizer: Any


@pytest.fixture(scope="session")
def make_tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyEncoder]:
    """Save a tiny encoder: `bert` (lower case), `distilbert` (cased, no token types), `roberta` (pads with id 1) or
    `llama` (a decoder).
    """
    import torch
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()

    def make(kind: str, architecture: str | None = None) -> TinyEncoder:
        folder = tmp_path_factory.mktemp(architecture or kind)
        tokenizer, tokens = _tiny_tokenizer(kind)
        config = transformers.AutoConfig.for_model(
            kind,
            vocab_size=tokenizer.get_vocab_size(),
            pad_token_id=tokenizer.token_to_id(tokens["pad_token"]),
            **_SIZE[kind],
        )
        torch.manual_seed(7)
        model = (
            getattr(transformers, architecture)(config) if architecture else transformers.AutoModel.from_config(config)
        )
        model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)
        return TinyEncoder(folder, tokenizer)

    return make


_BERT_SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,  # large enough that texts differ
}
_SIZE: dict[str, dict[str, Any]] = {
    "bert": _BERT_SIZE,
    "roberta": _BERT_SIZE | {"max_position_embeddings": 66, "type_vocab_size": 1},  # positions start after the pad id
    "llama": _BERT_SIZE | {"num_key_value_heads": 1, "initializer_range": 0.2},
    "distilbert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,
    },
}


def _tiny_tokenizer(kind: str) -> tuple[Any, dict[str, str]]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    first, last, pad, unknown = (
        ("<s>", "</s>", "<pad>", "<unk>") if kind == "roberta" else ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
    )
    special = [first, pad, last, unknown] if kind == "roberta" else [pad, unknown, first, last]
    normalizer, splitter = normalizers.BertNormalizer(lowercase=kind == "bert"), pre_tokenizers.BertPreTokenizer()
    words = [word for text in CORPUS for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    characters = sorted(set("".join(words)))
    # Not a trained vocabulary: training breaks ties differently in each process.
    pieces = dict.fromkeys([*special, *characters, *(f"##{character}" for character in characters), *words])
    tokenizer = Tokenizer(models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token=unknown))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)]
    )
    return tokenizer, {"cls_token": first, "sep_token": last, "pad_token": pad, "unk_token": unknown}


@pytest.fixture(scope="session")
def tiny_bert(make_tiny_encoder: Callable[..., TinyEncoder]) -> TinyEncoder:
    return make_tiny_encoder("bert")


@pytest.fixture(scope="session")
def tiny_distilbert(make_tiny_encoder: Callable[..., TinyEncoder]) -> TinyEncoder:
    return make_tiny_encoder("distilbert")


@pytest.fixture(scope="session")
def tiny_roberta(make_tiny_encoder: Callable[..., TinyEncoder]) -> TinyEncoder:
    return make_tiny_encoder("roberta")


@pytest.fixture(scope="session")
def tiny_llama(make_tiny_encoder: Callable[..., TinyEncoder]) -> TinyEncoder:
    return make_tiny_encoder("llama")


@pytest.fixture
def encoder_folder(tiny_bert: TinyEncoder, tmp_path: Path) -> Path:
    """A copy of the folder of the tiny BERT, which a test may damage."""
    return Path(shutil.copytree(tiny_bert.folder, tmp_path / "encoder"))


def load(folder: Path, pooling: Any = "auto", max_length: int = 32) -> Any:
    """Load an encoder as `--encoder` does."""
    from recollect.trainer.encoding.pretrained import load_pretrained

    return load_pretrained(str(folder), pooling, max_length, 8, "cpu")


@pytest.fixture(scope="session")
def tiny_encoder(tiny_bert: TinyEncoder) -> Any:
    return load(tiny_bert.folder)


@pytest.fixture(scope="session")
def minilm() -> Any:
    """The packaged all-MiniLM-L6-v2."""
    from recollect.trainer.encoding.pretrained import load_pretrained

    return load_pretrained("minilm", "auto", 128, 32, "cpu")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the Hugging Face hub in this process, which has already imported the library, and in child processes."""
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


# Words of the lesson's labels, and words that have no meaning for the labels.
_NAMES = ("quick", "Brown", "fox", "lazy", "dog", "paint", "lawn", "garden", "chair", "red", "blue", "naïve")
_NOISE = ("The", "jumps", "over", "the", "Café", "ABC", "abc")


@pytest.fixture(scope="session")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native dataset folder with a learnable pattern.

    Tests must not change the folder. It has 60 instances and 12 labels. The text of an instance contains the words of
    its label and other words. Some instances have a second label, and the last instance has no label.
    """
    folder = tmp_path_factory.mktemp("lesson")
    names = [(name, _NAMES[(row * 5 + 1) % 12]) for row, name in enumerate(_NAMES)]
    labels = [{"uid": f"L{row}", "text": " ".join(name)} for row, name in enumerate(names)]
    instances = []
    for row in range(60):
        around = [_NOISE[(row * step + step) % 7] for step in (1, 2, 3)]
        first, second = names[row % 12]
        text = " ".join([*around[: row % 3], second, around[2], first, *around[row % 3 :]])
        own = {row % 12} | ({(row * 7) % 12} if row % 4 == 1 else set())
        instances.append({"uid": f"i{row}", "text": text, "labels": sorted(own)})
    instances[-1]["labels"] = []
    for name, rows in (("labels", labels), ("train", instances)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def steady_encoder(tiny_bert: TinyEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny BERT without dropout."""
    folder = Path(shutil.copytree(tiny_bert.folder, tmp_path_factory.mktemp("steady") / "encoder"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def flags(lesson: Path, tiny_bert: Any, run_folder: Path) -> list[object]:
    """Arguments of `recollect train` on the lesson dataset with the tiny encoder.

    A later flag replaces an earlier flag.
    """
    return ["train", lesson, "--out", run_folder, "--encoder", tiny_bert.folder, *USUAL]


@pytest.fixture
def train(flags: list[object], capfd: pytest.CaptureFixture[str]) -> Train:
    def run(*more: object, dataset: Path | None = None) -> Outcome:
        capfd.readouterr()
        verb, usual, *rest = untrained(flags) if ("--epochs", 0) in itertools.pairwise(more) else flags
        status = recollect.main([str(argument) for argument in (verb, dataset or usual, *rest, *more)])
        return Outcome(status, *capfd.readouterr())

    return run
