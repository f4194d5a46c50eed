"""The file formats of bulk answers, recognised by the suffix of a file's name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, get_args

from recollect.service.errors import SettingsError
from recollect.service.settings import InputFormat
from recollect.service.storage.connect import without_credentials

_OUTPUT_FORMATS = ("jsonl", "csv", "parquet")
_SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


class Format(NamedTuple):
    name: str
    gzip: bool


def input_format(path: Path | str | None, chosen: InputFormat | None) -> Format:
    """The format of an input; None means standard input, whose lines are texts unless another format is chosen.

    Raises:
        SettingsError: If the suffix is of no known format and no format is chosen, or Parquet shall come from a stream.
    """
    found = _recognise(path, chosen or ("text" if path is None else None), get_args(InputFormat), "--input")
    if found.name == "parquet" and (path is None or found.gzip):
        raise SettingsError("--input-format: parquet needs an uncompressed file, because its end is read first")
    return found


def output_format(path: Path | str | None) -> Format:
    """The format of an output file; None means standard output, a pipe or a device, which get JSON lines.

    Raises:
        SettingsError: If the suffix is of no known format.
    """
    found = _recognise(path, "jsonl" if path is None else None, _OUTPUT_FORMATS, "--output")
    if found == Format("parquet", True):
        raise SettingsError(f"--output: expected .parquet, found {path}; Parquet files are compressed already")
    return found


def _recognise(path: Path | str | None, chosen: str | None, known: tuple[str, ...], flag: str) -> Format:
    name = str(path).rpartition("/")[2].lower() if path else ""
    suffix = Path(name.removesuffix(".gz")).suffix
    found = chosen or _SUFFIXES.get(suffix, "")
    if found not in known:
        suffixes = ", ".join(each for each, kind in _SUFFIXES.items() if kind in known)
        hint = "; use --input-format" if flag == "--input" else ""
        shown = without_credentials(path) if isinstance(path, str) else path
        raise SettingsError(f"{flag}: expected a name that ends in one of {suffixes}, found {shown}{hint}")
    return Format(found, name.endswith(".gz"))
