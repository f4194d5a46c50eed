"""The client of Milvus. Only this module imports pymilvus."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from recollect.service.milvus.breaker import Failure
from recollect.service.settings import EngineSettings

# Errors of a call.
CALL_ERRORS = (MilvusException, grpc.RpcError)
# Milvus's codes of errors: the server does not answer, a collection is not loaded (at all, or not completely), a
# parameter of the call is wrong, and the user or the password is wrong.
_CONNECT_FAILED, _NOT_LOADED, _WRONG_PARAMETERS, _UNAUTHENTICATED = 2, (101, 103), range(1100, 1200), 1400
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
    try:
        return MilvusClient(uri, token=token, timeout=seconds, dedicated=True, **options)
    except MilvusException as error:
        if isinstance(error.__cause__, grpc.RpcError) and failure(error.__cause__) == "unauthenticated":
            raise error.__cause__ from None  # pymilvus says that Milvus is away
        raise


def failure(error: Exception) -> Failure:
    """The kind of an error of a call."""
    if isinstance(error, MilvusException):
        if not isinstance(error.code, int) or error.code == _CONNECT_FAILED:
            return "unreachable"
        if error.code in _NOT_LOADED:
            return "not_loaded"
        if error.code == _UNAUTHENTICATED:
            return "unauthenticated"
        return "wrong_call" if error.is_input_error or error.code in _WRONG_PARAMETERS else "refused"
    assert isinstance(error, grpc.RpcError), "CALL_ERRORS has these two kinds"
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return "unreachable"
        case grpc.StatusCode.UNAUTHENTICATED:
            return "unauthenticated"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "timeout"
    return "refused"


def reason(error: Exception) -> str:
    """The message of an error, in one line."""
    if isinstance(error, MilvusException):
        text = error.message
    elif isinstance(error, grpc.RpcError):
        text = error.details() or error.code().name
    else:
        text = str(error)
    return text.partition("\n")[0][:500] or repr(error)
