"""The checkpoint folder: an encoder in the Hugging Face layout, and how its vectors are made.

    checkpoint/   config.json  model.safetensors  tokenizer.json ...  recollect.json
                  [adapter.safetensors]  [head.safetensors]

`recollect.json` holds pooling, length limits and, where there are an adapter and a head, what to make them of.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from trainer.encoder import Encoder, EncoderConfig, Pooling, UnitVectorModel
from trainer.errors import EncoderError
from trainer.files import flush_files
from trainer.heads.adapter import Adapter
from trainer.heads.classifier import Classifier
from trainer.heads.head import Head
from trainer.heads.prototypes import Prototypes
from trainer.pretrained import check_lengths, load_pretrained, load_transformer

_CONFIG, _ADAPTER, _HEAD = "recollect.json", "adapter.safetensors", "head.safetensors"
# What a head is made of again, by the name of its kind.
_HEADS: dict[str, type[Head]] = {head.kind: head for head in (Prototypes, Classifier)}
_FORMAT_VERSION = 1

_Module = TypeVar("_Module", bound=nn.Module)


def save_checkpoint(encoder: Encoder, folder: Path) -> None:
    """Write an encoder aside, then rename it into place: `folder` is whole, or `recover_checkpoint` makes it so."""
    recover_checkpoint(folder)
    aside = folder.with_name(f".{folder.name}-incoming")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        encoder.model.transformer.save_pretrained(aside)
        encoder.tokenizer.no_truncation()
        pad = encoder.tokenizer.id_to_token(encoder.pad_id)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder.tokenizer, pad_token=pad)  # type: ignore[no-untyped-call]
        try:
            tokenizer.save_pretrained(aside)
        except Exception as error:  # tokenizers raises plain Exception
            raise EncoderError(
                f"{folder}: the tokenizer cannot be written ({error}); make room, or choose another --out"
            ) from None
        adapter = encoder.model.adapter
        if adapter is not None:
            save_file(adapter.state_dict(), aside / _ADAPTER)
        head = encoder.model.head
        if head is not None:
            save_file(head.state_dict(), aside / _HEAD)
        config = {
            "format_version": _FORMAT_VERSION,
            "pad_id": encoder.pad_id,
            "adapter_hidden": adapter and adapter.hidden,
            "head": head and {"kind": head.kind, **head.shape()},
            **dataclasses.asdict(encoder.config),
        }
        (aside / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        flush_files(aside)
        if folder.exists():
            folder.rename(_older(folder))
        aside.rename(folder)
    except SafetensorError as error:
        raise EncoderError(
            f"{folder}: the weights cannot be written ({error}); make room, or choose another --out"
        ) from None
    finally:
        recover_checkpoint(folder)
        shutil.rmtree(aside, ignore_errors=True)


def recover_checkpoint(folder: Path) -> None:
    """Put the older checkpoint back where a kill came between it and its successor, else remove it."""
    older = _older(folder)
    if not folder.exists() and older.exists():
        older.rename(folder)
    shutil.rmtree(older, ignore_errors=True)


def _older(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-older")


def load_encoder(
    name: str, pooling: Pooling | Literal["auto"], max_length: int, label_max_length: int, device: str
) -> Encoder:
    """Load an encoder to start from: a checkpoint folder of ours, with its adapter, or what `load_pretrained` finds.

    A head belongs to the labels that it was trained on, and stays behind.

    Raises:
        EncoderError: If it cannot be found, read or trusted, or knows fewer positions than the lengths ask for.
    """
    if not (Path(name) / _CONFIG).is_file():
        return load_pretrained(name, pooling, max_length, label_max_length, device)
    saved = load_checkpoint(Path(name), device)
    chosen = saved.config.pooling if pooling == "auto" else pooling
    config = EncoderConfig(name, chosen, max_length, label_max_length)
    check_lengths(config, saved.model.transformer)
    model = UnitVectorModel(saved.model.transformer, chosen, saved.model.adapter)
    return Encoder(config, model, saved.tokenizer, saved.pad_id, device)


def load_checkpoint(folder: Path, device: str) -> Encoder:
    """Read a checkpoint that `save_checkpoint` wrote.

    Raises:
        EncoderError: If it is missing, incomplete or of an unknown format.
    """
    path = folder / _CONFIG
    if not path.is_file():
        raise EncoderError(f"{path}: expected a checkpoint's settings, found no such file; run `recollect train`")
    try:
        saved = json.loads(path.read_text())
        version = saved.pop("format_version")
        if version != _FORMAT_VERSION:
            raise EncoderError(f"{path}: expected format_version {_FORMAT_VERSION}, found {version}; train again")
        pad_id = saved.pop("pad_id")
        hidden = saved.pop("adapter_hidden", None)
        if not (hidden is None or (type(hidden) is int and hidden > 0)):
            raise ValueError(f"adapter_hidden {hidden!r}")
        head = saved.pop("head", None)
        config = EncoderConfig(**saved)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EncoderError(f"{path}: expected a checkpoint's settings, found: {error!r}; train again") from None
    transformer = load_transformer(str(folder), str(folder))
    try:  # as saved: AutoTokenizer would rebuild it by the architecture's own rules
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain Exception
        raise EncoderError(f"{folder}/tokenizer.json: expected a tokenizer, found: {error}; train again") from None
    dim = int(transformer.config.hidden_size)
    model = UnitVectorModel(
        transformer,
        config.pooling,
        None if hidden is None else _load_weights(Adapter(dim, hidden), folder / _ADAPTER),
        None if head is None else _load_weights(_make_head(path, dim, head), folder / _HEAD),
    )
    return Encoder(config, model, tokenizer, pad_id, device)


def _make_head(path: Path, dim: int, described: Any) -> Head:
    """An untrained head of the kind and shape that a checkpoint describes."""
    try:
        shape = dict(described)
        return _HEADS[shape.pop("kind")](dim, **shape)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise EncoderError(f"{path}: expected the description of a head, found: {error!r}; train again") from None


def _load_weights(module: _Module, path: Path) -> _Module:
    try:
        module.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        found = " ".join(str(error).split())  # torch lists what is missing line by line
        raise EncoderError(
            f"{path}: expected weights of the shapes that {_CONFIG} tells, found: {found}; train again"
        ) from None
    return module


def encoder_digest(encoder: Encoder) -> str:
    """SHA-256 over the weights and the tokenizer: equal for equal vectors, however they were stored."""
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    tokenizer = Tokenizer.from_str(encoder.tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    digest.update(tokenizer.to_str().encode())
    return digest.hexdigest()
