"""Encoders in folders of sentence-transformers have the vectors that this package computes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint, save_checkpoint
from recollect.trainer.encoding.pretrained import load_pretrained
from recollect.trainer.errors import EncoderError
from tests.trainer.conftest import SAMPLE_TEXTS, load

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BERT = SIZE | {"max_position_embeddings": 64, "initializer_range": 0.5}
DECODER = BERT | {"num_key_value_heads": 1, "head_dim": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "albert": BERT | {"embedding_size": 16},
    "bert": BERT,
    "camembert": BERT | {"max_position_embeddings": 80},
    "deberta-v2": BERT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "initializer_range": 0.5},
    "electra": BERT | {"embedding_size": 16},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.5},
    "llama": DECODER,
    "modernbert": BERT | {"global_attn_every_n_layers": 2, "local_attention": 8},
    "mpnet": BERT | {"max_position_embeddings": 80},
    "qwen3": DECODER,
    "roberta": BERT | {"max_position_embeddings": 80},
    "xlm-roberta": BERT | {"max_position_embeddings": 80},
}
POOLING = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture(scope="session")
def folders(make_tiny_encoder: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a transformer with random weights."""
    from transformers import AutoConfig, AutoModel

    tiny = make_tiny_encoder("bert")

    def folder(kind: str) -> Path:
        path = tmp_path_factory.mktemp(kind) / "encoder"
        shutil.copytree(tiny.folder, path)
        torch.manual_seed(5)
        special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        size = ARCHITECTURES[kind]
        config = AutoConfig.for_model(kind, vocab_size=tiny.tokenizer.get_vocab_size(), **special, **size)
        AutoModel.from_config(config).save_pretrained(path)
        return path

    return folder


def layer(kind: str, *arguments: Any, **options: Any) -> Any:
    from sentence_transformers.sentence_transformer import modules

    return getattr(modules, kind)(*arguments, **options)


def random_dense(inputs: int, outputs: int, activation: Any) -> Any:
    torch.manual_seed(11)
    return layer("Dense", inputs, outputs, activation_function=activation)


def save(transformer: Path, folder: Path, *modules: Any, **settings: Any) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    first = layer("Transformer", str(transformer))
    model = SentenceTransformer(modules=[first, *modules], device="cpu", **settings)
    model.save(str(folder))
    return model


def expected(model: SentenceTransformer, texts: list[str] = SAMPLE_TEXTS, **prompt: Any) -> np.ndarray:
    model.max_seq_length = 32
    return np.asarray(model.encode(texts, normalize_embeddings=True, **prompt))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_each_architecture_has_the_vectors_of_sentence_transformers(
    kind: str, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    pooling = "lasttoken" if kind in ("gpt2", "llama", "qwen3") else "mean"
    model = save(
        folders(kind), tmp_path / "model", layer("Pooling", 32, pooling), random_dense(32, 24, torch.nn.Tanh())
    )
    np.testing.assert_allclose(load(tmp_path / "model").encode(SAMPLE_TEXTS, 32), expected(model), atol=2e-6)


@pytest.mark.parametrize("pooling", [*POOLING, ("mean", "cls"), POOLING])
def test_each_pooling_has_the_vectors_of_sentence_transformers(
    pooling: Any, encoder_folder: Path, tmp_path: Path
) -> None:
    model = save(encoder_folder, tmp_path / "model", layer("Pooling", 32, pooling))
    encoder = load(tmp_path / "model")
    np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32), expected(model), atol=2e-6)
    assert encoder.dim == 32 * (1 if isinstance(pooling, str) else len(pooling))


LAYERS: dict[str, Callable[[], list[Any]]] = {
    "dense": lambda: [random_dense(32, 16, torch.nn.Identity())],
    "dense with gelu, then normalize": lambda: [random_dense(32, 48, torch.nn.GELU()), layer("Normalize")],
    "normalize, then dense": lambda: [layer("Normalize"), random_dense(32, 8, torch.nn.Tanh())],
    "two dense": lambda: [
        random_dense(32, 64, torch.nn.ReLU()),
        random_dense(64, 16, torch.nn.Sigmoid()),
        layer("Normalize"),
    ],
    "layer norm": lambda: [layer("LayerNorm", 32), layer("Normalize")],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_after_the_pooling_are_applied_and_saved_in_a_checkpoint(
    name: str, encoder_folder: Path, tmp_path: Path
) -> None:
    model = save(encoder_folder, tmp_path / "model", layer("Pooling", 32, "mean"), *LAYERS[name]())
    encoder, right = load(tmp_path / "model"), expected(model)
    np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32), right, atol=2e-6)
    save_checkpoint(encoder, tmp_path / "checkpoint")
    saved = load_checkpoint(tmp_path / "checkpoint", "cpu")
    np.testing.assert_allclose(saved.encode(SAMPLE_TEXTS, 32), right, atol=2e-6)
    assert (encoder_digest(saved), saved.config) == (encoder_digest(encoder), encoder.config)


def test_do_lower_case_makes_texts_lower_case(
    folders: Callable[[str], Path], tiny_distilbert: Any, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    transformer = layer("Transformer", str(tiny_distilbert.folder), do_lower_case=True)
    model = SentenceTransformer(modules=[transformer, layer("Pooling", 32)], device="cpu")
    model.save(str(tmp_path / "model"))
    settings = tmp_path / "model" / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 32, "do_lower_case": True}))  # version 6 no longer saves the flag
    np.testing.assert_allclose(load(tmp_path / "model").encode(SAMPLE_TEXTS, 32), expected(model), atol=2e-6)
    assert not np.allclose(load(tiny_distilbert.folder).encode(SAMPLE_TEXTS, 32), expected(model), atol=1e-2)


def test_transformer_in_a_folder_of_its_own_is_read(encoder_folder: Path, tmp_path: Path) -> None:
    model = save(encoder_folder, tmp_path / "model", layer("Pooling", 32, "cls"))
    own = tmp_path / "model" / "0_Transformer"
    own.mkdir()
    for path in list((tmp_path / "model").iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(own / path.name)
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_allclose(load(tmp_path / "model").encode(SAMPLE_TEXTS, 32), expected(model), atol=2e-6)


class TestPrompts:
    PROMPTS = {"query": "quick: ", "document": "lazy dog "}

    def test_declared_prompts_come_before_queries_and_labels(self, encoder_folder: Path, tmp_path: Path) -> None:
        model = save(encoder_folder, tmp_path / "model", layer("Pooling", 32), prompts=self.PROMPTS)
        encoder = load(tmp_path / "model")
        model.max_seq_length = 32
        for side, encode in (("queries", model.encode_query), ("labels", model.encode_document)):
            right = encode(SAMPLE_TEXTS, normalize_embeddings=True)
            np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32, side=side), right, atol=2e-6)

    def test_prompts_of_the_flags_replace_declared_ones(self, encoder_folder: Path, tmp_path: Path) -> None:
        model = save(encoder_folder, tmp_path / "model", layer("Pooling", 32), prompts=self.PROMPTS)
        encoder = load_pretrained(
            str(tmp_path / "model"), "auto", 32, 8, "cpu", query_prompt="red paint ", label_prompt=""
        )
        right = expected(model, prompt="red paint ")
        np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32), right, atol=2e-6)
        right = expected(model, prompt="")
        np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32, side="labels"), right, atol=2e-6)

    @pytest.mark.parametrize(
        ("declared", "right"),
        [
            ({"prompts": {"query": "q: "}, "default_prompt_name": "query"}, ("q: ", "")),
            ({"prompts": {"passage": "p: "}}, ("", "p: ")),
            ({"prompts": {"task": "t: "}, "default_prompt_name": "task"}, ("t: ", "t: ")),
            ({"prompts": {"task": "t: "}}, ("", "")),
        ],
    )
    def test_names_of_prompts(self, declared: Any, right: tuple[str, str], encoder_folder: Path) -> None:
        (encoder_folder / "config_sentence_transformers.json").write_text(json.dumps(declared))
        config = load(encoder_folder).config
        assert (config.query_prompt, config.label_prompt) == right

    def test_prompt_that_the_pooling_leaves_out_is_refused(self, encoder_folder: Path, tmp_path: Path) -> None:
        save(encoder_folder, tmp_path / "model", layer("Pooling", 32, include_prompt=False), prompts=self.PROMPTS)
        with pytest.raises(EncoderError, match="include_prompt: false.* found 'quick: '.*--query-prompt ''"):
            load(tmp_path / "model")
        load_pretrained(str(tmp_path / "model"), "auto", 32, 8, "cpu", query_prompt="", label_prompt="")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another module": (
        lambda folder: (folder / "modules.json").write_text(
            json.dumps([{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in ("BoW", "Dense")])
        ),
        "modules.json: expected Transformer, Pooling, and then any of .* found BoW, Dense",
    ),
    "code of the model": (
        lambda folder: (folder / "modules.json").write_text('[{"type": "custom_st.Transformer", "path": ""}]'),
        r"modules.json: .* found custom_st.Transformer",
    ),
    "no JSON": (lambda folder: (folder / "1_Pooling/config.json").write_text("mean"), "1_Pooling/config.json: .*JSON"),
    "another pooling": (
        lambda folder: edit(folder / "1_Pooling/config.json", pooling_mode="median"),
        "1_Pooling/config.json: pooling_mode: found 'median'",
    ),
    "chat messages": (
        lambda folder: edit(folder / "sentence_bert_config.json", modality_config={"message": {}}),
        "sentence_bert_config.json: modality_config: found",
    ),
    "another activation": (
        lambda folder: edit(folder / "2_Dense/config.json", activation_function="os.system"),
        "2_Dense/config.json: activation_function: found 'os.system'",
    ),
    "unknown setting": (
        lambda folder: edit(folder / "2_Dense/config.json", use_residual=True),
        "2_Dense/config.json: use_residual: found True",
    ),
    "another kind of model": (
        lambda folder: edit(folder / "config_sentence_transformers.json", model_type="SparseEncoder"),
        "config_sentence_transformers.json: model_type: found 'SparseEncoder'",
    ),
    "no weights": (
        lambda folder: (folder / "2_Dense/model.safetensors").unlink(),
        "2_Dense/model.safetensors: expected",
    ),
    "inputs of another size": (
        lambda folder: edit(folder / "2_Dense/config.json", in_features=64),
        "expected the weights|expected a vector of 64 dimensions",
    ),
}


@pytest.mark.parametrize(("damage", "complaint"), REFUSED.values(), ids=REFUSED)
def test_part_that_is_not_supported_is_refused_by_name(
    damage: Callable[[Path], object], complaint: str, encoder_folder: Path, tmp_path: Path
) -> None:
    save(encoder_folder, tmp_path / "model", layer("Pooling", 32), random_dense(32, 16, torch.nn.Tanh()))
    damage(tmp_path / "model")
    with pytest.raises(EncoderError, match=complaint) as refusal:
        load(tmp_path / "model")
    assert "\n" not in str(refusal.value)


def test_pooling_whose_vector_does_not_fit_the_next_layer_is_refused(encoder_folder: Path, tmp_path: Path) -> None:
    save(encoder_folder, tmp_path / "model", layer("Pooling", 32), random_dense(32, 16, torch.nn.Tanh()))
    with pytest.raises(EncoderError, match=r"--pooling cls\+mean: expected a vector of 32 dimensions.* found 64"):
        load(tmp_path / "model", "cls+mean")
