"""The errors of the service.

ServiceError (like the errors of all packages, a RecollectError)
├── BundleError               a file of a bundle is missing, altered, of an unknown format, or not signed as required
├── WrongAnswersError         a bundle opens, but does not answer its golden queries as it must
├── KeyFileError              a file contains no key of the expected kind
├── StoreError                a store is missing or cannot be read, or no version is current
│   ├── UnknownVersionError       the store does not contain the version, or the name is not a version's name
│   ├── ActivationConflictError   another process changed the current version at the same time
│   ├── ActivationRefusedError    an activation or a rollback does not fit the present state of the store
│   └── MemoryLogError            the log of a live memory is damaged or foreign, or cannot be written
│       └── LogConflictError          another process appended to the log at the same time
├── QueryError                a query cannot be answered with its options
├── ChangeError               a change of a memory is wrong
│   ├── UnknownUidError           the memory does not have an instance, a label or a feedback with this uid
│   └── RepeatedKeyError          another request had this Idempotency-Key
├── QueryTooLargeError        a query has too many bytes
├── DeadlineError             an answer was not complete in time
├── UnknownSequenceError      a process does not know a change of the memory yet
├── InputError                a file or a stream of queries cannot be read, or a row of it is wrong
├── OutputError               answers cannot be written, or are those of another task
├── WorkerError               a worker process ended, or one of Ray
├── ClusterError              Ray does not start, or a cluster of Ray does not accept the program
├── AddressError              the service cannot listen on an address
├── SettingsError             settings contradict each other, or a file or Redis that they name cannot be used
├── RedisError                Redis does not answer
├── EngineError               Milvus does not answer, or refuses a call
├── EncoderDownError          the server of an encoder does not answer, or not with the vectors of the version
├── InsufficientMemoryError   too little memory is free to open a bundle
├── NotServedError            a replica does not serve the current version
├── NotReadyError             no bundle is open yet
├── VersionNotOpenError       a request names a version that this process does not have open
├── DrainingError             the service is stopping
├── OverloadError             too many queries wait
├── ClientGoneError           a client disconnected before its change was made
└── RateLimitError            an API key exceeds its rate
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class RecollectError(Exception):
    """An error that the user can correct; its message names the place, the rule, the value found and the next step.

    The base class of the errors of all packages.
    """

    exit_status = 2


class ServiceError(RecollectError):
    """An error of the service.

    Attributes:
        status: HTTP status of the response to a request that fails with it.
        code: Code of the problem; None means the code of the status.
    """

    status: int = 500
    code: str | None = None


class BundleError(ServiceError):
    status, code = 409, "broken_bundle"


class WrongAnswersError(ServiceError):
    exit_status = 1


class KeyFileError(ServiceError):
    pass


class StoreError(ServiceError):
    status, code = 503, "store_unreadable"


class UnknownVersionError(StoreError):
    status, code = 404, "unknown_version"


class ActivationConflictError(StoreError):
    exit_status = 1
    status, code = 409, "conflict"


class MemoryLogError(StoreError):
    code = "log_unwritable"


class LogConflictError(MemoryLogError):
    exit_status = 1


class ActivationRefusedError(StoreError):
    status, code = 409, "activation_refused"


class QueryError(ServiceError):
    status = 422


class QueryTooLargeError(ServiceError):
    status, code = 413, "query_too_large"


class DeadlineError(ServiceError):
    status = 504


class UnknownSequenceError(ServiceError):
    status, code = 409, "sequence_unknown"


class ChangeError(ServiceError):
    status = 422


class UnknownUidError(ChangeError):
    status, code = 404, "unknown_uid"


class RepeatedKeyError(ChangeError):
    code = "idempotency_key_reused"


class InputError(ServiceError):
    pass


class OutputError(ServiceError):
    pass


class WorkerError(ServiceError):
    exit_status = 1


class ClusterError(ServiceError):
    exit_status = 1


class AddressError(ServiceError):
    pass


class SettingsError(ServiceError):
    pass


class RedisError(ServiceError):
    exit_status = 1
    status, code = 503, "redis_down"


class EngineError(ServiceError):
    exit_status = 1
    status, code = 503, "engine_down"


class EncoderDownError(ServiceError):
    exit_status = 1
    status, code = 503, "encoder_down"


class InsufficientMemoryError(ServiceError):
    exit_status = 1


class NotServedError(ServiceError):
    exit_status = 1


class NotReadyError(ServiceError):
    status = 503


class VersionNotOpenError(ServiceError):
    status, code = 409, "version_not_open"

    def __init__(self, version: str, open_versions: list[str]) -> None:
        super().__init__(
            f"X-Index-Version: expected an open version ({', '.join(open_versions)}), found {version[:80]!r}; "
            "name one of these, or leave the header out"
        )
        self.open_versions = open_versions


class DrainingError(ServiceError):
    status, code = 503, "draining"

    def __init__(self) -> None:
        super().__init__("the service is stopping; send the request to another replica")


class OverloadError(ServiceError):
    status, code = 503, "overloaded"


class ClientGoneError(ServiceError):
    """Nobody reads its response; the status counts the request in metrics and logs."""

    status, code = 499, "client_gone"

    def __init__(self) -> None:
        super().__init__("the client disconnected before its change was made; nothing has changed")


class RateLimitError(ServiceError):
    status = 429

    def __init__(self, message: str, wait_seconds: float) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


@contextlib.contextmanager
def opening(path: Path) -> Iterator[Path]:
    """Convert every error of a library that opens a file into a BundleError that names the file."""
    try:
        yield path
    except MemoryError:  # too little memory is not an error of the file
        raise
    except Exception as error:  # each library raises its own error classes
        reason = str(error).partition("\n")[0] or repr(error)
        raise BundleError(f"{path}: expected a file that opens, found: {reason}; build the bundle again") from error
