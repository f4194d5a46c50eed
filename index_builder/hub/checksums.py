"""`checksums.json`: the files of a run on the hub, with their sizes and SHA-256.

A run on the hub consists of data files only. A file of code, or of another kind that this program does not read, is
neither uploaded nor downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recollect.index_builder.errors import BuildError

CHECKSUMS = "checksums.json"
_FOLDERS = ("checkpoint", "memory", "query_encoder")
_FILES = ("training.json", "metrics.jsonl")
# JSON files that Recollect writes. They contain the folder of an encoder that was not a name of the hub.
_OWN = frozenset(
    (
        "training.json",
        "memory/memory.json",
        *(f"{folder}/{name}" for folder in _FOLDERS for name in ("recollect.json", "distillation.json")),
    )
)
_SUFFIXES = (".json", ".jsonl", ".npy", ".npz", ".safetensors", ".txt", ".model")


class FileSum(BaseModel):
    """The size and the SHA-256 of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Checksums(BaseModel):
    """The files of a run by their paths, which have slashes on every system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    files: Mapping[str, FileSum]


def files_to_upload(run: Path) -> dict[str, Path | bytes]:
    """The files of a run by their names on the hub. No content names the folders of this machine."""
    paths = (path for path in sorted(run.rglob("*")) if path.is_file())
    names = {path.relative_to(run).as_posix(): path for path in paths}
    return {name: _without_folders(path) if name in _OWN else path for name, path in names.items() if _is_data(name)}


def sum_files(files: Mapping[str, Path | bytes]) -> Checksums:
    """Compute the checksums of files or contents."""
    return Checksums(files={name: _sum_file(content) for name, content in files.items()})


def read_checksums(path: Path, where: str) -> Checksums:
    """Read `checksums.json`.

    Raises:
        BuildError: If the file is invalid, or names a file that a run does not have.
    """
    try:
        checksums = Checksums.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "content"
        raise BuildError(f"{where}: {CHECKSUMS}: {field[:80]}: {problem['msg']}; push the run again") from None
    if wrong := [name for name in checksums.files if not _is_data(name)]:
        raise BuildError(f"{where}: {CHECKSUMS}: expected data files of a run, found {wrong[0][:80]!r}; do not use it")
    return checksums


def write_checksums(checksums: Checksums) -> bytes:
    return json.dumps(checksums.model_dump(), indent=2).encode()


def check_file(path: Path, name: str, expected: FileSum, where: str) -> None:
    """Check a downloaded file.

    Raises:
        BuildError: If its size or its SHA-256 differs.
    """
    found = _sum_file(path)
    if found != expected:
        raise BuildError(
            f"{where}: {name}: expected {expected.size:,} bytes with SHA-256 {expected.sha256[:12]}..., found "
            f"{found.size:,} bytes with {found.sha256[:12]}...; delete {path.resolve()} and try again"
        )


def _is_data(name: str) -> bool:
    path = PurePosixPath(name)
    is_plain = path.as_posix() == name and "\\" not in name and ".." not in path.parts and not path.is_absolute()
    is_known = name in _FILES or (len(path.parts) > 1 and path.parts[0] in _FOLDERS and path.suffix in _SUFFIXES)
    return is_plain and is_known


def _without_folders(path: Path) -> bytes | Path:
    """The content of a JSON file with the last part of each absolute path; the path itself if it contains none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BuildError(f"{path}: expected JSON, found: {error}; train again") from None
    changed = _last_parts(content)
    return path if changed == content else json.dumps(changed, indent=2).encode()


def _last_parts(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _last_parts(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_last_parts(value) for value in content]
    return Path(content).name if isinstance(content, str) and Path(content).is_absolute() else content


def _sum_file(content: Path | bytes) -> FileSum:
    if isinstance(content, bytes):
        return FileSum(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    with content.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSum(size=content.stat().st_size, sha256=digest)
