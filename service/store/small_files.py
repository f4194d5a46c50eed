"""The small files of a store beside its bundles, such as CURRENT: in a folder, or in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from service.store.bundle_folder import replace_file


class SmallFiles(Protocol):
    """The files that `FolderFiles` keeps in a folder and `ObjectFolder` in an object store."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if the file does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file: readers see either the old or the new content."""

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""

    def names(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder; an empty result if the folder does not exist."""


class FolderFiles:
    """Small files in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(exist_ok=True)
        replace_file(path, content)

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []
