"""The query encoder of a bundle whose vectors come from a server: the server, and then the graph of the bundle.

A bundle records the address of its server, but only the address of the settings is called: otherwise the bundle of a
stranger could send queries and a token to a server of the stranger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import structlog
from jaxtyping import Float
from pydantic import SecretStr, ValidationError

from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.files import ENCODER_SERVER
from recollect.core.bundle.manifest import EncoderInfo
from recollect.core.encoder import GRAPH, TextEncoder, Tokens, open_session
from recollect.core.errors import BundleError
from recollect.core.settings import ConnectionSettings, Device, EncoderAddress
from recollect.extras.encoder_server.server import EmbeddingServer, ServedModel

log = structlog.get_logger(__name__)


class ServedQueryEncoder(TextEncoder):
    """Encodes texts with a server and a graph from its vectors to those of the memory."""

    def __init__(self, server: EmbeddingServer, session: onnxruntime.InferenceSession, info: EncoderInfo) -> None:
        super().__init__()
        self._server, self._session, self._info = server, session, info
        self.dim = session.get_outputs()[0].shape[-1]

    @property
    def problem(self) -> str | None:
        return self._server.problem

    def tokenise(self, queries: Sequence[str], labels: Sequence[str] = ()) -> Tokens:
        texts = [self._info.query_prompt + text for text in queries]
        texts += [self._info.label_prompt + text for text in labels]
        return Tokens([], [False] * len(texts), texts)

    def encode(self, tokens: Tokens, checkpoint: Callable[[], None] = lambda: None) -> Float[np.ndarray, "query dim"]:
        if not tokens.texts:
            return np.empty((0, self.dim), dtype=np.float32)
        found = self._server.vectors(tokens.texts, checkpoint)
        if self._info.normalised:
            found /= np.linalg.norm(found, axis=1, keepdims=True)
        vectors: np.ndarray = self._session.run(["vectors"], {"text_vectors": found})[0]
        return vectors


def open_encoder(bundle: Bundle, threads: int, device: Device, connections: ConnectionSettings) -> ServedQueryEncoder:
    """Open the encoder of a bundle. Versions with an equal encoder share it.

    Raises:
        SettingsError: If the settings have no address.
        EncoderDownError: If the server does not answer.
        BundleError: If it has another model than the bundle, or a file does not open.
    """
    components, info = bundle.components, bundle.manifest.encoder
    model = components.open(_read_model, ENCODER_SERVER)
    address = model.address(connections.encoder_url, f"version {bundle.manifest.version}")
    session = components.open(open_session, GRAPH, info.precision, threads, device)
    token, seconds = connections.encoder_token, connections.encoder_seconds
    return components.open(_connect, ENCODER_SERVER, model, session, info, address, token, seconds)


def _read_model(path: Path) -> ServedModel:
    try:
        return ServedModel.model_validate_json(path.read_bytes())
    except ValidationError as error:
        found = error.errors()[0]["msg"]
        raise BundleError(f"{path}: expected a model of a server, found: {found}; build the bundle again") from None


def _connect(
    path: Path,
    model: ServedModel,
    session: onnxruntime.InferenceSession,
    info: EncoderInfo,
    address: EncoderAddress,
    token: SecretStr | None,
    seconds: float,
) -> ServedQueryEncoder:
    server = EmbeddingServer(address, token, seconds, _log, model)
    if (difference := server.difference()) is not None:
        raise BundleError(f"{path}: {difference}")
    return ServedQueryEncoder(server, session, info)


def _log(event: str, why: str) -> None:
    if event != "encoder_retry":
        log.warning(event, why=why)
