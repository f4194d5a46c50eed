"""The checkpoint folder: an encoder in the Hugging Face layout, with its adapter, head and settings.

    checkpoint/   [config.json  model.safetensors  tokenizer.json ...]  recollect.json
                  [layers.safetensors]  [adapter.safetensors]  [head.safetensors]

`recollect.json` contains the pooling and the layers after it, the length limits, the prompts, the texts that the
training held out (as the rule of `recollect.trainer.held_out`), the shapes of the adapter and the head, and how they
read labels. If a server gives the vectors, there is no transformer, and `recollect.json` records the server's model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from recollect.core import extras
from recollect.core.settings import ConnectionSettings, is_encoder_url
from recollect.core.system.files import flush_files, read_json
from recollect.core.tokenizer import check_reads_every_text
from recollect.trainer.encoding.encoder import Encoder, EncoderConfig, UnitVectorModel
from recollect.trainer.encoding.lora import merged_weights
from recollect.trainer.encoding.pooling import Pooler
from recollect.trainer.encoding.pretrained import check_lengths, given_settings, load_pretrained, load_transformer
from recollect.trainer.errors import EncoderError
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.head import Head
from recollect.trainer.methods import METHODS

_CONFIG, _LAYERS = "recollect.json", "layers.safetensors"
_ADAPTER, _HEAD = "adapter.safetensors", "head.safetensors"
_FORMAT_VERSION = 2

_Module = TypeVar("_Module", bound=nn.Module)


def save_checkpoint(encoder: Encoder, folder: Path) -> None:
    """Write a checkpoint to a temporary folder, then rename it into place.

    If the process is killed during this function, `folder` is complete, or `recover_checkpoint` restores the previous
    checkpoint.
    """
    recover_checkpoint(folder)
    incoming = folder.with_name(f".{folder.name}-incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True)
    try:
        if encoder.served is None:
            _save_transformer(encoder, folder, incoming)
        if encoder.config.layers:
            save_file(encoder.model.pooler.state_dict(), incoming / _LAYERS)
        adapter = encoder.model.adapter
        if adapter is not None:
            save_file(adapter.state_dict(), incoming / _ADAPTER)
        head = encoder.model.head
        if head is not None:
            save_file(head.state_dict(), incoming / _HEAD)
        config = {
            "format_version": _FORMAT_VERSION,
            "pad_id": encoder.pad_id,
            "adapter_hidden": adapter and adapter.hidden,
            "head": head and {"kind": head.kind, **head.shape},
            **encoder.config.as_json(),
        }
        if encoder.served is not None:
            config["server"] = encoder.served
        (incoming / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        flush_files(incoming)
        if folder.exists():
            folder.rename(_previous_path(folder))
        incoming.rename(folder)
    except SafetensorError as error:
        raise EncoderError(
            f"{folder}: the weights cannot be written ({error}); free disk space, or choose another --out"
        ) from None
    finally:
        recover_checkpoint(folder)
        shutil.rmtree(incoming, ignore_errors=True)


def _save_transformer(encoder: Encoder, folder: Path, incoming: Path) -> None:
    transformer = encoder.model.transformer
    transformer.save_pretrained(incoming, state_dict=merged_weights(transformer))
    encoder.tokenizer.no_truncation()
    pad = encoder.tokenizer.id_to_token(encoder.pad_id)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder.tokenizer, pad_token=pad)  # type: ignore[no-untyped-call]
    try:
        tokenizer.save_pretrained(incoming)
    except Exception as error:  # tokenizers raises plain Exception
        raise EncoderError(
            f"{folder}: the tokenizer cannot be written ({error}); free disk space, or choose another --out"
        ) from None


def recover_checkpoint(folder: Path) -> None:
    """Restore the previous checkpoint if a kill interrupted its replacement.

    Otherwise remove the previous checkpoint.
    """
    previous = _previous_path(folder)
    if not folder.exists() and previous.exists():
        previous.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def _previous_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-older")


def load_encoder(
    name: str,
    pooling: str,
    max_length: int,
    label_max_length: int,
    device: str,
    flag: str = "--encoder",
    query_prompt: str | None = None,
    label_prompt: str | None = None,
) -> Encoder:
    """Load an encoder to start training from: a server, a checkpoint folder, or a model that `load_pretrained` finds.

    The adapter of a checkpoint is loaded. The head is not loaded, because it belongs to the labels of the previous
    training: see `load_head`.

    Raises:
        EncoderError: If the encoder is missing, invalid or untrusted, or has fewer token positions than the length
            limits.
        EncoderDownError, SettingsError: If the server does not answer, or the URL is wrong.
    """
    if is_encoder_url(name):
        if flag != "--encoder":
            raise EncoderError(f"{flag}: expected an encoder with its own weights, found a server; name a model")
        served = extras.load("trained encoder", "server")
        encoder: Encoder = served.load(name, max_length, label_max_length, device, query_prompt, label_prompt)
        return encoder
    if not (Path(name) / _CONFIG).is_file():
        return load_pretrained(name, pooling, max_length, label_max_length, device, flag, query_prompt, label_prompt)
    saved = load_checkpoint(Path(name), device)
    config = dataclasses.replace(
        saved.config,
        name=name,
        max_length=max_length,
        label_max_length=label_max_length,
        normalised=True,
        **given_settings(pooling, query_prompt, label_prompt),
    )
    if saved.served is not None:
        return saved.replaced(config, saved.layered(saved.model.adapter, None, True))
    check_lengths(config, saved.model.transformer)
    saved.model.pooler.pooling = config.pooling
    model = UnitVectorModel(saved.model.transformer, saved.model.pooler, saved.model.adapter)
    return Encoder(config, model, saved.tokenizer, saved.pad_id, device)


def load_checkpoint(folder: Path, device: str, connections: ConnectionSettings | None = None) -> Encoder:
    """Load a checkpoint that `save_checkpoint` wrote.

    Args:
        connections: The connection to a server that gives the vectors; None reads the environment variables.

    Raises:
        EncoderError: If the checkpoint is missing, incomplete or in an unknown format.
    """
    path = folder / _CONFIG
    if not path.is_file():
        raise EncoderError(f"{path}: expected a checkpoint's settings, found no such file; run `recollect train`")
    try:
        saved = read_json(path)
        version = saved.pop("format_version")
        if version != _FORMAT_VERSION:
            raise EncoderError(f"{path}: expected format_version {_FORMAT_VERSION}, found {version}; train again")
        pad_id = saved.pop("pad_id")
        hidden = saved.pop("adapter_hidden")
        if not (hidden is None or (type(hidden) is int and hidden > 0)):
            raise ValueError(f"adapter_hidden {hidden!r}")
        head, server = saved.pop("head"), saved.pop("server", None)
        config = EncoderConfig.of_json(saved)
        pooler = Pooler(config.pooling, config.layers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EncoderError(f"{path}: expected a checkpoint's settings, found: {error!r}; train again") from None

    def layers(dim: int) -> tuple[Adapter | None, Head | None]:
        adapter = None if hidden is None else _load_weights(Adapter(dim, hidden), folder / _ADAPTER)
        return adapter, None if head is None else _load_weights(_create_head(path, dim, head), folder / _HEAD)

    if server is not None:
        served = extras.load("trained encoder", "server")
        encoder: Encoder = served.of_checkpoint(path, server, config, layers, device, connections)
        return encoder
    transformer = load_transformer(str(folder), str(folder))
    try:  # AutoTokenizer would rebuild the tokenizer by the rules of the architecture
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain Exception
        raise EncoderError(f"{folder}/tokenizer.json: expected a tokenizer, found: {error}; train again") from None
    check_reads_every_text(tokenizer, f"{folder}/tokenizer.json", EncoderError)
    dim = pooler.dim(int(transformer.config.hidden_size))
    model = UnitVectorModel(
        transformer,
        _load_weights(pooler, folder / _LAYERS) if config.layers else pooler,
        *layers(dim),
        config.normalised,
    )
    return Encoder(config, model, tokenizer, pad_id, device)


def load_head(folder: Path, dim: int) -> Head | None:
    """Load the head of a checkpoint that `load_encoder` accepts; None if the encoder has none.

    Args:
        folder: The checkpoint, or the name of another encoder.

    Raises:
        EncoderError: If the head is incomplete.
    """
    path = folder / _CONFIG
    described = read_json(path)["head"] if path.is_file() else None
    return None if described is None else _load_weights(_create_head(path, dim, described), folder / _HEAD)


def _create_head(path: Path, dim: int, described: Any) -> Head:
    """Create an untrained head from the kind and the shape that `recollect.json` describes."""
    try:
        shape, heads = dict(described), [method.head() for method in METHODS.values() if method.head is not None]
        return {head.kind: head for head in heads}[shape.pop("kind")](dim, **shape)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise EncoderError(f"{path}: expected the description of a head, found: {error!r}; train again") from None


def _load_weights(module: _Module, path: Path) -> _Module:
    try:
        module.load_state_dict(load_file(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        found = " ".join(str(error).split())  # torch lists missing weights on several lines
        raise EncoderError(
            f"{path}: expected weights of the shapes in {_CONFIG}, found: {found}; train again"
        ) from None
    return module


def encoder_digest(encoder: Encoder) -> str:
    """SHA-256 over the weights and the tokenizer. The digest does not depend on the file layout.

    A server is represented by the name of its model, because its vectors vary a little.
    """
    digest = hashlib.sha256()
    if not encoder.config.normalised:
        digest.update(b"not normalised")
    for name, tensor in sorted(encoder.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    if encoder.served is not None:
        digest.update(f"{encoder.served['model']} {encoder.served['dim']}".encode())
        return digest.hexdigest()
    tokenizer = Tokenizer.from_str(encoder.tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    digest.update(tokenizer.to_str().encode())
    return digest.hexdigest()
