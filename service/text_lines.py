"""Lines of text files in UTF-8, plain or gzip. Errors name the file and the line."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from recollect.service.errors import InputError, RecollectError

# A file has the line ends of its first bytes.
_HEAD_BYTES = 1 << 16
# The first bytes of files in other encodings. Text in UTF-16 begins with a byte order mark, or has a byte 0.
_UTF_16, _GZIP = (b"\xff\xfe", b"\xfe\xff"), b"\x1f\x8b"


def read_lines(path: Path, error: type[RecollectError] = InputError) -> Iterator[tuple[int, str]]:
    r"""Yield each line number, from 1, with the line.

    A line ends with \n or \r\n, or with \r in a file without \n. Its end and a byte order mark at its beginning are
    removed.

    Args:
        path: The file; gzip if its name ends in .gz.
        error: Class of the errors.

    Raises:
        RecollectError: If the file is not UTF-8, or its gzip stream breaks.
    """
    number = 0
    try:
        with _open(path) as file:
            head = file.peek(_HEAD_BYTES)
            if found := _other_encoding(head):
                raise error(f"{path}: expected UTF-8, found {found}")
            end = "\r" if b"\r" in head[:-1] and b"\n" not in head else "\n"
            with io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline=end) as text:
                for number, line in enumerate(text, start=1):
                    if problem := _encoding_problem(line):
                        raise error(f"{path}:{number}: {problem}; convert the file, for example with iconv")
                    yield number, line.rstrip("\r\n").lstrip("\ufeff")
    except (EOFError, gzip.BadGzipFile, zlib.error) as broken:
        raise error(f"{path}: the gzip stream breaks after line {number} ({broken}); copy the file again") from None


def _open(path: Path) -> io.BufferedReader | gzip.GzipFile:
    return gzip.open(path) if path.suffix == ".gz" else io.BufferedReader(io.FileIO(path), _HEAD_BYTES)


def _other_encoding(head: bytes) -> str | None:
    if head.startswith(_UTF_16) or 0 in head[:2]:
        return "UTF-16; convert the file, for example with iconv -f UTF-16 -t UTF-8"
    return "gzip; the name must end in .gz" if head.startswith(_GZIP) else None


def _encoding_problem(line: str) -> str | None:
    """The first byte of a line that is not UTF-8. The decoder has replaced it by half of a surrogate pair."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        column = len(line[: error.start].encode()) + 1
        return f"expected UTF-8, found byte 0x{ord(line[error.start]) - 0xDC00:02x} at column {column}"
    return None
