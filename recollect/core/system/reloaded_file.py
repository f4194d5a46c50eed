"""Files of keys that are read again when they change, so that keys can be changed without a restart."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from recollect.core.errors import ServiceError
from recollect.core.system.background import BackgroundThread

log = structlog.get_logger(__name__)

# Time between two checks whether a file has changed.
_CHECK_SECONDS = 1.0

_Content = TypeVar("_Content")
_FileState = tuple[int, ...]


class ReloadedFile(Generic[_Content]):
    """The content of a file, which `reload_if_changed` replaces.

    If `read` refuses the new content with a ServiceError, the old content stays in use, and one log line states the
    reason, so the error must not contain secrets.

    Attributes:
        content: The content that was read last. It can change at any time, so a caller reads this attribute once.
    """

    def __init__(self, path: Path, read: Callable[[Path], _Content]) -> None:
        self._path, self._read = path, read
        self._used = self._seen = self._state()  # before the file is read: a later change is a new state
        self.content = read(path)

    def reload_if_changed(self) -> None:
        """Read the file if it has changed, but not since the previous call: the program that writes it has finished."""
        state = self._state()
        if state == self._seen and state != self._used:
            self._used = state
            try:
                self.content = self._read(self._path)
            except ServiceError as error:
                log.error("keys_refused", file=str(self._path), error=str(error), kept="the keys read before")
            else:
                log.info("keys_reloaded", file=str(self._path))
        self._seen = state

    def _state(self) -> _FileState | None:
        """Numbers that change when the file is written or replaced; None if the file does not exist."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextlib.contextmanager
def reloading(files: Sequence[ReloadedFile[Any]]) -> Iterator[None]:
    """Check the files regularly in a background thread."""

    def check() -> None:
        for file in files:
            file.reload_if_changed()

    thread = BackgroundThread("key-files", check, _CHECK_SECONDS, "keys_not_checked")
    if files:
        thread.start()
    try:
        yield
    finally:
        thread.stop()
