"""What can be wrong with what the service is handed.

ServiceError
├── BundleError         a bundle's file is missing, altered, of an unknown format, or not signed as it must be
├── WrongAnswersError   a bundle opens, but answers otherwise than it was built to
├── KeyFileError        a file holds no key of the kind wanted
├── StoreError          a store is none, cannot be read, or does not say what is current
│   └── UnknownVersionError   it lacks the version asked for, or that is no version's name
├── QueryError          a query cannot be answered as asked
├── AddressError        the service cannot listen where it was told to
├── SettingsError       settings are at odds, or the file or the Redis that one names is not what it must be
├── RedisError          Redis does not answer
├── HeadroomError       too little memory is free to open a bundle beside another
├── NotServedError      a replica does not serve the version that is current
├── NotReadyError       no bundle is loaded yet, or the service is stopping
└── OverloadError       more queries wait than may
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


class ServiceError(Exception):
    """A mistake the user can mend; its message says where, what was expected, what was found, what to do."""

    exit_status = 2


class BundleError(ServiceError):
    pass


class WrongAnswersError(ServiceError):
    exit_status = 1


class KeyFileError(ServiceError):
    pass


class StoreError(ServiceError):
    pass


class UnknownVersionError(StoreError):
    pass


class QueryError(ServiceError):
    pass


class AddressError(ServiceError):
    pass


class SettingsError(ServiceError):
    pass


class RedisError(ServiceError):
    exit_status = 1


class HeadroomError(ServiceError):
    exit_status = 1


class NotServedError(ServiceError):
    exit_status = 1


class NotReadyError(ServiceError):
    pass


class OverloadError(ServiceError):
    pass


@contextlib.contextmanager
def opening(path: Path) -> Iterator[Path]:
    """Name the file in whatever a library says of one that it cannot open.

    Raises:
        BundleError: In place of the library's own error.
    """
    try:
        yield path
    except MemoryError:  # no fault of the file's
        raise
    except Exception as error:  # every library has its own
        reason = str(error).partition("\n")[0] or repr(error)
        raise BundleError(f"{path}: expected a file that opens, found: {reason}; build the bundle again") from error
