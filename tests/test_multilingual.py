"""`--encoder multilingual` and `multilingual-static`, on small models with the files of the published ones.

They are in the cache of the Hugging Face hub, where a download puts them. Their vectors decide the answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import recollect
from recollect.trainer.errors import EncoderError
from recollect.trainer.shorthands import SHORTHANDS
from tests.conftest import TOPICS, write_topics
from tests.formula import label_scores
from tests.processes import call

QUERIES = ["Wer muss Steuern zahlen?", "Messe in einer alten Kirche", "x", "malaria rokote", "音楽"]
CORPUS = [sentence for sentences in TOPICS.values() for sentence in sentences] + QUERIES
LAMBDA, TAU, TOP_B = 0.4, 0.05, 12


def _write_e5(folder: Path) -> None:
    """A BERT with the Unigram tokenizer of XLM-R, a mean and a normalisation. It declares no prompts."""
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    names = [*special.values()]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    options: dict[str, Any] = {"special_tokens": names, "unk_token": "<unk>", "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=200, **options))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    torch.manual_seed(3)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, initializer_range=0.5, pad_token_id=0, **size
    )
    plain = folder.parent / "transformer"
    transformers.BertModel(config).save_pretrained(plain)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(plain)
    modules = [Transformer(str(plain)), Pooling(32, "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def _write_static(folder: Path) -> None:
    """Token vectors that are no unit vectors, with the tokenizer of an uncased BERT, which can add special tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    vectors = 400 * np.random.default_rng(3).standard_normal((tokenizer.get_vocab_size(), 24), dtype=np.float32)
    module = StaticEmbedding(tokenizer, embedding_weights=vectors)
    SentenceTransformer(modules=[module], device="cpu").save(str(folder))


WRITERS: dict[str, Callable[[Path], None]] = {"multilingual": _write_e5, "multilingual-static": _write_static}


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write the small model of a short name where a download puts the published one. There is no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def write(name: str) -> Path:
        model = tmp_path / "hub" / f"models--{SHORTHANDS[name].source.replace('/', '--')}"
        (model / "refs").mkdir(parents=True)
        (model / "refs" / "main").write_text("0" * 40)
        WRITERS[name](model / "snapshots" / ("0" * 40))
        return model / "snapshots" / ("0" * 40)

    return write


@pytest.mark.parametrize("name", WRITERS)
def test_answers_come_from_the_vectors_of_the_model_with_its_prompts(
    name: str, cached: Callable[[str], Path], tmp_path: Path
) -> None:
    model, shorthand = SentenceTransformer(str(cached(name)), device="cpu"), SHORTHANDS[name]
    write_topics(tmp_path / "dataset")
    lengths = ["--max-length", 64, "--label-max-length", 64]
    call("train", tmp_path / "dataset", "--out", tmp_path / "run", "--epochs", 0, "--encoder", name, *lengths)
    build = ["--index", "flat", "--lexical", "off", "--activate"]
    call("build", tmp_path / "run", "--store", tmp_path / "store", *build)

    def encode(prompt: str, texts: list[str]) -> np.ndarray:
        vectors: np.ndarray = model.encode([prompt + text for text in texts], normalize_embeddings=True)
        return vectors

    rows = [json.loads(line) for line in (tmp_path / "dataset" / "train.jsonl").read_text().splitlines()]
    instances = encode(shorthand.query_prompt, [row["text"] for row in rows])
    y = np.array([[uid in row["labels"] for uid in TOPICS] for row in rows], dtype=float)
    queries, labels = encode(shorthand.query_prompt, QUERIES), encode(shorthand.label_prompt, [*TOPICS])
    expected = label_scores(queries, instances, labels, y, LAMBDA, TAU, TOP_B)
    opened = recollect.open(tmp_path / "store")
    answers = opened.predict(QUERIES, lambda_=LAMBDA, temperature=TAU, top_b=TOP_B, top_k=len(TOPICS))
    found = [{label.uid: label.score for label in answer} for answer in answers]
    scores = np.array([[each.get(uid, 0.0) for uid in TOPICS] for each in found])
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-5)
    manifest = json.loads(next((tmp_path / "store" / "bundles").glob("*/manifest.json")).read_text())
    assert manifest["encoder"]["name"] == shorthand.source
    assert manifest["encoder"]["kind"] == ("static" if name == "multilingual-static" else "transformer")


def test_adapter_and_whole_table_can_be_trained_above_static_vectors(
    cached: Callable[[str], Path], tmp_path: Path
) -> None:
    cached("multilingual-static")
    write_topics(tmp_path / "dataset")
    for part in ("adapter", "full"):
        flags = ["--encoder", "multilingual-static", "--train", part, "--max-steps", 2, "--validation-fraction", 0]
        call("train", tmp_path / "dataset", "--out", tmp_path / part, *flags)
        assert (tmp_path / part / "memory").is_dir()


@pytest.mark.parametrize("damage", ["extra tensor", "no vectors", "no tokenizer", "damaged tokenizer"])
def test_damaged_static_model_is_refused_in_one_line(
    damage: str, cached: Callable[[str], Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = cached("multilingual-static") / "0_StaticEmbedding"
    folder = folder if folder.is_dir() else folder.parent
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    if damage == "extra tensor":
        save_file(load_file(weights) | {"mapping": torch.zeros(3)}, weights)
        expected = r"expected one table, embedding.weight or embeddings, found embedding.weight, mapping"
    elif damage == "no vectors":
        weights.unlink()
        expected = r"model.safetensors: expected the vectors of tokens, found no such file"
    elif damage == "no tokenizer":
        tokenizer.unlink()
        expected = r"tokenizer.json: expected a tokenizer, found no such file"
    else:
        tokenizer.write_text("{}")
        expected = r"tokenizer.json: expected a tokenizer, found: "
    from recollect.trainer.encoding.pretrained import load_pretrained

    with pytest.raises(EncoderError, match=expected) as refusal:
        load_pretrained("multilingual-static", "auto", 32, 8, "cpu")
    assert "\n" not in str(refusal.value)


def test_other_pooling_of_token_vectors_is_refused(cached: Callable[[str], Path]) -> None:
    from recollect.trainer.encoding.pretrained import load_pretrained

    cached("multilingual-static")
    with pytest.raises(
        EncoderError, match=r"--pooling cls: expected mean, the pooling of --encoder multilingual-static"
    ):
        load_pretrained("multilingual-static", "cls", 32, 8, "cpu")


def test_model_that_is_not_downloaded_is_named_in_the_error(cached: Callable[[str], Path]) -> None:
    from recollect.trainer.encoding.pretrained import load_pretrained

    with pytest.raises(EncoderError, match=r"--encoder multilingual \(intfloat/multilingual-e5-small\): expected a"):
        load_pretrained("multilingual", "auto", 32, 8, "cpu")
