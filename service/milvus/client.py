"""The client of Milvus. Only this module imports pymilvus."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from service.settings import EngineSettings

# Errors of a call.
CALL_ERRORS = (MilvusException, grpc.RpcError)
# Milvus's codes of errors: the server does not answer, and a collection is not loaded.
_CONNECT_FAILED, _NOT_LOADED = 2, 101
_CONNECT_SECONDS = 10.0


def open_client(settings: EngineSettings) -> MilvusClient:
    """Connect to a server, or to a file of milvus-lite.

    Raises:
        MilvusException, grpc.RpcError, OSError, ValueError: If that fails.
    """
    for name in ("pymilvus", "milvus_lite", "grpc"):  # errors are raised too, and messages can contain the URI
        logging.getLogger(name).setLevel(logging.CRITICAL)
    assert settings.engine_uri is not None
    options: dict[str, Any] = {}
    if settings.engine_ca is not None:
        options["server_pem_path"] = str(settings.engine_ca)  # pymilvus uses `ca_pem_path` only for client certificates
    token = "" if settings.engine_token is None else settings.engine_token.get_secret_value()
    uri = settings.engine_uri.get_secret_value()
    seconds = min(settings.engine_seconds, _CONNECT_SECONDS)
    return MilvusClient(uri, token=token, timeout=seconds, dedicated=True, **options)


def is_unreachable(error: Exception) -> bool:
    """Whether the connection was refused or lost."""
    if isinstance(error, MilvusException):
        return not isinstance(error.code, int) or error.code == _CONNECT_FAILED
    return isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE


def is_out_of_time(error: Exception) -> bool:
    """Whether the time limit of the call passed."""
    return isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def is_not_loaded(error: Exception) -> bool:
    return isinstance(error, MilvusException) and error.code == _NOT_LOADED


def reason(error: Exception) -> str:
    """The message of an error, in one line."""
    if isinstance(error, MilvusException):
        text = error.message
    elif isinstance(error, grpc.RpcError):
        text = error.details() or error.code().name
    else:
        text = str(error)
    return text.partition("\n")[0][:500] or repr(error)
