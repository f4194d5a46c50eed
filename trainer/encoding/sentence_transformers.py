"""Reads the parts of a sentence-transformers model beside its transformer. Unknown parts and settings are refused.

modules.json                       the modules: Transformer, Pooling, then any of Dense, LayerNorm and Normalize
sentence_bert_config.json          whether texts become lower case
1_Pooling/config.json              the pooling
2_Dense/config.json                sizes and activation of a layer
2_Dense/model.safetensors          its weights
0_StaticEmbedding/                 in place of transformer and pooling: tokenizer.json and the vectors of the tokens
config_sentence_transformers.json  the prompts of queries and documents
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer, normalizers, processors
from torch import Tensor
from transformers.utils.hub import cached_file

from recollect.core.system.files import read_json
from recollect.trainer.encoding.pooling import ACTIVATIONS, Layer, Pooler
from recollect.trainer.errors import EncoderError
from recollect.trainer.settings import POOLINGS

# Kind of the only module of a static model, and the names that its table of vectors may have.
_STATIC, _TOKEN_VECTORS = "StaticEmbedding", {"embedding.weight", "embeddings"}
# Name of the pooling `last` in the files of sentence-transformers.
_LAST = "lasttoken"
# Names of the prompt of documents, which is the prompt of labels here; the first one that a model declares counts.
_DOCUMENT = ("document", "passage", "corpus")

# The settings of each file, with the value that is supported; None: all values.
_TRANSFORMER = {
    "max_seq_length": None,
    "do_lower_case": None,
    "transformer_task": "feature-extraction",
    "modality_config": None,
    "module_output_name": "token_embeddings",
    "unpad_inputs": None,
}
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_POOLING = {"word_embedding_dimension": None, "embedding_dimension": None, "pooling_mode": None, "include_prompt": None}
_ON_VECTORS = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
_DENSE = {"in_features": None, "out_features": None, "bias": None, "activation_function": None, **_ON_VECTORS}
_LAYERS: dict[str, Mapping[str, Any]] = {"Dense": _DENSE, "LayerNorm": {"dimension": None}, "Normalize": _ON_VECTORS}
_MODEL = {
    "__version__": None,
    "prompts": None,
    "default_prompt_name": None,
    "similarity_fn_name": None,
    "model_type": "SentenceTransformer",
}


@dataclass(frozen=True)
class Declared:
    """The declarations of a model.

    Attributes:
        transformer: Folder of the transformer in the model, or of its token vectors.
        is_static: Whether the model has token vectors in place of a transformer. The vector of a text is their mean.
        layers: The layers after the pooling. A `Normalize` at the end is left out, because encoders do that anyway.
        include_prompt: Whether the pooling includes the tokens of a prompt.
    """

    source: str
    transformer: str = ""
    pooling: str = "mean"
    layers: list[Layer] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    lower_case: bool = False
    include_prompt: bool = True
    query_prompt: str = ""
    label_prompt: str = ""
    is_static: bool = False

    def load_token_vectors(self) -> Tensor:
        """Load the vectors of a static model, of shape (token, dim).

        Raises:
            EncoderError: If they are missing, or if there are other tensors too.
        """
        name = f"{self.transformer}/model.safetensors".lstrip("/")
        if (path := _find(self.source, name)) is None:
            raise EncoderError(f"{self.source}/{name}: expected the vectors of tokens, found no such file")
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise EncoderError(f"{path}: expected the vectors of tokens, found: {error}") from None
        if len(tensors) != 1 or not tensors.keys() <= _TOKEN_VECTORS or (found := [*tensors.values()])[0].ndim != 2:
            raise EncoderError(
                f"{path}: expected one table, {' or '.join(sorted(_TOKEN_VECTORS))}, found "
                f"{', '.join(sorted(tensors)) or 'nothing'}; choose another encoder"
            )
        return found[0].float()

    def load_static_tokenizer(self) -> Tokenizer:
        """Load the tokenizer of a static model, which adds no special tokens to a text.

        Raises:
            EncoderError: If it is missing or damaged.
        """
        name = f"{self.transformer}/tokenizer.json".lstrip("/")
        if (path := _find(self.source, name)) is None:
            raise EncoderError(f"{self.source}/{name}: expected a tokenizer, found no such file")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise EncoderError(f"{path}: expected a tokenizer, found: {error}") from None
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
        return tokenizer

    def load_weights(self, pooler: Pooler) -> None:
        """Load the weights of the layers.

        Raises:
            EncoderError: If they are missing, or have other shapes.
        """
        for layer, folder in zip(pooler.layers, self.folders, strict=True):
            if not layer.state_dict():
                continue
            name = f"{folder}/model.safetensors"
            if (path := _find(self.source, name)) is None:
                raise EncoderError(f"{self.source}/{name}: expected the weights of a layer, found no such file")
            try:
                layer.load_state_dict(load_file(path))
            except (OSError, RuntimeError, SafetensorError) as error:
                found = " ".join(str(error).split())
                raise EncoderError(f"{path}: expected the weights of a layer, found: {found}") from None

    def prepare(self, tokenizer: Tokenizer) -> None:
        """Let a tokenizer make texts lower case, if the model declares it."""
        if self.lower_case:
            own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def read_declared(source: str) -> Declared:
    """Read the declarations of a model. A model without `modules.json` has a transformer, and pools the mean.

    Raises:
        EncoderError: If a file is damaged, or declares a module or a setting that is not supported.
        OSError: If the model cannot be reached.
    """
    modules = _read_modules(source)
    kinds = [kind for kind, _ in modules]
    if kinds[:1] == [_STATIC] and {*kinds[1:]} <= {"Normalize"}:
        query_prompt, label_prompt = _read_prompts(source)
        folder = modules[0][1]
        return Declared(source, folder, query_prompt=query_prompt, label_prompt=label_prompt, is_static=True)
    if kinds[:2] != ["Transformer", "Pooling"] or not _LAYERS.keys() >= set(kinds[2:]):
        raise EncoderError(
            f"{source}/modules.json: expected Transformer, Pooling, and then any of {', '.join(_LAYERS)}, or "
            f"{_STATIC}, found {', '.join(kinds) or 'none'}; choose another encoder"
        )
    while kinds[-1] == "Normalize":
        kinds.pop()
    folders = [folder for _, folder in modules[: len(kinds)]]
    transformer = _settings(source, f"{folders[0]}/sentence_bert_config.json".lstrip("/"), _TRANSFORMER)
    modality = transformer.get("modality_config", _TEXT)
    if not isinstance(modality, dict) or modality.get("text") != _TEXT["text"]:
        raise _unsupported(source, "sentence_bert_config.json", "modality_config", modality)
    pooling = f"{folders[1]}/config.json"
    legacy = {_legacy(kind): None for kind in POOLINGS}
    declared = _settings(source, pooling, _POOLING | legacy)
    layers = [_layer(source, kind, folder) for kind, folder in zip(kinds[2:], folders[2:], strict=True)]
    query_prompt, label_prompt = _read_prompts(source)
    return Declared(
        source,
        folders[0],
        _pooling(source, pooling, declared),
        layers,
        folders[2:],
        bool(transformer.get("do_lower_case")),
        bool(declared.get("include_prompt", True)),
        query_prompt,
        label_prompt,
    )


def _read_modules(source: str) -> list[tuple[str, str]]:
    """The kind and the folder of each module. A class of another package keeps its full name, so it is refused."""
    found = _read(source, "modules.json", list)
    if found is None:
        return [("Transformer", ""), ("Pooling", "1_Pooling")]
    try:
        named = [(str(module["type"]), str(module["path"])) for module in found]
    except (KeyError, TypeError) as error:
        raise EncoderError(
            f"{source}/modules.json: expected a type and a path of each module, found: {error!r}"
        ) from None
    own = "sentence_transformers."
    return [(kind.rpartition(".")[2] if kind.startswith(own) else kind, path) for kind, path in named]


def _pooling(source: str, name: str, declared: Mapping[str, Any]) -> str:
    kinds = declared.get("pooling_mode")
    if kinds is None:  # before sentence-transformers 6, one flag for each kind: {"pooling_mode_cls_token": true, ...}
        kinds = [kind for kind in POOLINGS if declared.get(_legacy(kind)) is True]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    kinds = ["last" if kind == _LAST else kind for kind in kinds]
    if not all(kind in POOLINGS for kind in kinds):
        raise _unsupported(source, name, "pooling_mode", declared["pooling_mode"])
    return "+".join(kinds) or "mean"


def _legacy(kind: str) -> str:
    names = {"cls": "cls_token", "last": _LAST, "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
    return f"pooling_mode_{names.get(kind, f'{kind}_tokens')}"


def _layer(source: str, kind: str, folder: str) -> Layer:
    name = f"{folder}/config.json"
    settings = _settings(source, name, _LAYERS[kind])
    if kind == "Normalize":
        return {"kind": kind}
    sizes = ("in_features", "out_features") if kind == "Dense" else ("dimension",)
    for size in sizes:
        if type(settings.get(size)) is not int or settings[size] < 1:
            raise _unsupported(source, name, size, settings.get(size))
    layer = {"kind": kind, **{size: settings[size] for size in sizes}}
    if kind == "LayerNorm":
        return layer
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    package, _, activation_name = activation.rpartition(".")
    if not f"{package}.".startswith("torch.nn.") or activation_name not in ACTIVATIONS:
        raise _unsupported(source, name, "activation_function", activation)
    return layer | {"bias": bool(settings.get("bias", True)), "activation": activation_name}


def _read_prompts(source: str) -> tuple[str, str]:
    """The prompts of queries and of documents; without these names, both have the default prompt of the model."""
    model = _settings(source, "config_sentence_transformers.json", _MODEL)
    prompts = model.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise _unsupported(source, "config_sentence_transformers.json", "prompts", prompts)
    prompts = {name: prompt or "" for name, prompt in prompts.items()}
    document = next((name for name in _DOCUMENT if name in prompts), "")
    if "query" in prompts or document:
        return prompts.get("query", ""), prompts.get(document, "")
    default = prompts.get(str(model.get("default_prompt_name")), "")
    return default, default


def _settings(source: str, name: str, supported: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file; none without the file."""
    settings: dict[str, Any] = _read(source, name, dict) or {}
    for key, value in settings.items():
        if value and (key not in supported or supported[key] not in (None, value)):
            raise _unsupported(source, name, key, value)
    return settings


def _read(source: str, name: str, kind: type) -> Any:
    """The content of a JSON file; None without the file."""
    if (path := _find(source, name)) is None:
        return None
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise EncoderError(f"{source}/{name}: expected JSON, found: {error}") from None
    if not isinstance(content, kind):
        raise EncoderError(f"{source}/{name}: expected a JSON {kind.__name__}, found {type(content).__name__}")
    return content


def _find(source: str, name: str) -> Path | None:
    path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def _unsupported(source: str, name: str, key: str, value: object) -> EncoderError:
    return EncoderError(f"{source}/{name}: {key}: found {value!r}, which is not supported; choose another encoder")
