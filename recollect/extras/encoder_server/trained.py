"""The encoder of a training whose vectors come from a server: the server, then an adapter and a head on its vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from pydantic import ValidationError

from recollect.core.errors import QueryError, SettingsError
from recollect.core.settings import ConnectionSettings, EncoderAddress
from recollect.core.system.console import print_status
from recollect.extras.encoder_server.server import EmbeddingServer, ServedModel
from recollect.trainer.encoding.encoder import Encoder, EncoderConfig, embed
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.errors import EncoderError
from recollect.trainer.heads.adapter import Adapter, Side
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.heads.head import Head


class ServedEncoder(Encoder):
    """An encoder whose vectors come from a server.

    Args:
        connect: Connects to the server, at the first use of the encoder.
    """

    model: VectorDualEncoder  # type: ignore[assignment]  # there is no transformer to train or to export
    pad_id = 0

    def __init__(
        self,
        config: EncoderConfig,
        model: VectorDualEncoder,
        served: ServedModel,
        connect: Callable[[], EmbeddingServer],
        device: str,
    ) -> None:
        self.config, self.model, self.device, self.dim = config, model.to(device).eval(), device, model.key_dim
        self.served: dict[str, Any] = served.model_dump(mode="json")
        self._served, self._connect = served, connect

    def encode(
        self,
        texts: Sequence[str],
        max_length: int,
        progress: Callable[[int], object] | None = None,
        side: Side = "queries",
        first: int = 0,
    ) -> Float[np.ndarray, "text dim"]:
        """Encode texts, as `Encoder.encode`; the server decides how many tokens it reads.

        Raises:
            EncoderError: If the server refuses a text, or has another model than the checkpoint.
            EncoderDownError, SettingsError: If the server does not answer, or its address is not given.
        """
        if len(texts) == 0:
            return np.empty((0, self.dim), dtype=np.float32)
        prompt = self.config.prompt(side)
        try:
            vectors = self._connect().vectors([prompt + text for text in texts], progress=progress or (lambda _: None))
        except QueryError as error:
            raise EncoderError(f"{self.config.name}: {error}") from None
        if self.config.normalised:
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return embed(self.model, VectorTable(torch.from_numpy(vectors), side, first), self.dim, self.device)

    def replaced(self, config: EncoderConfig, model: Any = None) -> ServedEncoder:
        return ServedEncoder(config, self.model if model is None else model, self._served, self._connect, self.device)

    def layered(self, adapter: Adapter | None, head: Head | None, normalised: bool) -> Any:
        return VectorDualEncoder(self._served.dim, adapter, head, normalised)


def load(
    name: str, max_length: int, label_max_length: int, device: str, query_prompt: str | None, label_prompt: str | None
) -> ServedEncoder:
    """Load the encoder of `--encoder URL#MODEL`.

    Raises:
        SettingsError: If it is no such URL.
        EncoderDownError: If the server does not answer, or not with vectors.
    """
    address = EncoderAddress.parse(name, "--encoder")
    if not address.model:
        raise SettingsError(f"--encoder {address.url}: expected #MODEL after the URL, found none; add the model's name")
    server = _server(address, None)
    served = server.describe()
    config = EncoderConfig(
        str(address),
        "auto",
        max_length,
        label_max_length,
        query_prompt=query_prompt or "",
        label_prompt=label_prompt or "",
    )
    return ServedEncoder(config, VectorDualEncoder(served.dim), served, lambda: server, device)


def of_checkpoint(
    path: Path,
    saved: Any,
    config: EncoderConfig,
    layers: Callable[[int], tuple[Adapter | None, Head | None]],
    device: str,
    connections: ConnectionSettings | None,
) -> ServedEncoder:
    """The encoder of a checkpoint. The first use connects to its server, at the address of the settings.

    Args:
        path: The settings of the checkpoint.
        saved: The model that they record.
        layers: Loads adapter and head above vectors of this dimension.
        connections: None reads the environment variables.

    Raises:
        EncoderError: If the model is damaged.
    """
    try:
        served = ServedModel.model_validate(saved)
    except ValidationError as error:
        raise EncoderError(f"{path}: server: {error.errors()[0]['msg']}; train again") from None

    @functools.cache
    def connect() -> EmbeddingServer:
        settings = connections or ConnectionSettings.of_environment()
        server = _server(served.address(settings.encoder_url, str(path.parent)), served, settings)
        if (difference := server.difference()) is not None:
            raise EncoderError(f"{path}: {difference}")
        return server

    adapter, head = layers(served.dim)
    model = VectorDualEncoder(served.dim, adapter, head, config.normalised)
    return ServedEncoder(config, model, served, connect, device)


def _server(
    address: EncoderAddress, expected: ServedModel | None, settings: ConnectionSettings | None = None
) -> EmbeddingServer:
    """A server for the many calls of a training or a build, which are repeated for minutes."""
    settings = (settings or ConnectionSettings.of_environment()).patient()
    return EmbeddingServer(address, settings.encoder_token, settings.encoder_seconds, _report, expected)


def _report(event: str, why: str) -> None:
    if event == "encoder_retry":
        print_status(f"{why} (the call is repeated)")
