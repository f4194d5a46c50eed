"""Inputs and outputs at URLs such as s3://bucket/queries.parquet, with temporary files on this machine.

An input is copied to a temporary file. An output is written to NAME.partial in the current folder, from which a later
run continues, and is uploaded when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recollect.service.bulk.output import FileOutput
from recollect.service.errors import InputError, SettingsError
from recollect.service.storage.object_folder import ObjectFolder


@contextlib.contextmanager
def downloaded(url: str) -> Iterator[tuple[Path, str]]:
    """A temporary copy of the file at a URL, and the SHA-256 of its content.

    Raises:
        InputError: If there is no such file.
        StoreError: If it cannot be read.
    """
    folder, name = _split(url, "--input")
    if not folder.has(name):
        raise InputError(f"{folder.name}/{name}: expected a file, found none; check the URL")
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="recollect-") as temporary:
        path = Path(temporary) / name
        with path.open("wb") as file:
            for piece in folder.pieces(name):
                file.write(piece)
                digest.update(piece)
        yield path, digest.hexdigest()


class ObjectOutput(FileOutput):
    """A file at a URL. It appears complete, or not at all."""

    def __init__(
        self, url: str, facts: dict[str, Any] | None, overwrite: bool, convert: Callable[[Path, Path], None] | None
    ) -> None:
        self._folder, name = _split(url, "--output")
        super().__init__(Path(name), facts, overwrite, convert)

    def _exists(self) -> bool:
        return self._folder.has(self._path.name)

    def _publish(self, file: Path) -> None:
        self._folder.upload(file, self._path.name)
        file.unlink()

    def _shown_name(self) -> str:
        return f"{self._folder.name}/{self._path.name}"


def _split(url: str, flag: str) -> tuple[ObjectFolder, str]:
    """The folder of a file at a URL, and the file's name."""
    parent, _, name = url.rpartition("/")
    if not name or parent.endswith(("/", ":")):
        raise SettingsError(f"{flag}: expected the URL of a file, such as s3://bucket/file.jsonl, found {parent}/")
    return ObjectFolder(parent), name
