"""The output of a task, which is complete or absent, and which a task that was killed continues.

A task writes to OUTPUT.partial, and about once a second the number of finished rows and bytes to OUTPUT.partial.json.
At the end, OUTPUT.partial is renamed. A later run of the same task cuts OUTPUT.partial to the bytes of finished rows,
and continues with the next row.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from recollect.service.errors import OutputError

_FORMAT_VERSION = 1
_SECONDS_BETWEEN_STATES = 1.0


class Output(Protocol):
    """An open output.

    Attributes:
        rows: Number of rows that are written.
    """

    rows: int

    def write_header(self, content: bytes) -> None:
        """Write the bytes before the first row, if they are not written yet."""

    def write(self, content: bytes, rows: int) -> None:
        """Write the next rows; `rows` is the number of all rows after this."""

    def finish(self) -> None:
        """Complete the output after its last row."""


class StreamOutput:
    """Standard output, a pipe or a device. It cannot be continued."""

    complete = False

    def __init__(self, path: Path | None) -> None:
        self.rows, self._name = 0, "standard output" if path is None else str(path)
        if path is None:  # unbuffered, so that no bytes are left for the exit of Python if the output is full
            sys.stdout.flush()
            self._file: Any = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        else:
            self._file = path.open("wb", buffering=0)

    def __enter__(self) -> StreamOutput:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write_header(self, content: bytes) -> None:
        _write(self._file, content, self._name)

    def write(self, content: bytes, rows: int) -> None:
        _write(self._file, content, self._name)
        self.rows = rows

    def finish(self) -> None:
        pass


class FileOutput:
    """A file. Use it as a context manager: its end records the last finished rows.

    Args:
        path: The file.
        facts: All that decides the content of the file, by name. A run with other facts does not continue this one.
            None: no run can be continued, because its input cannot be read again.
        overwrite: Whether to replace an existing file, and to forget an unfinished run.
        convert: Turns the finished partial file into the output; None if it is the output already.

    Attributes:
        complete: Whether an earlier run was killed after its last step, so that nothing is left to do.

    Raises:
        OutputError: If the file exists, or an unfinished run has other facts or still runs.
        OSError: If the file cannot be written.
    """

    def __init__(
        self, path: Path, facts: dict[str, Any] | None, overwrite: bool, convert: Callable[[Path, Path], None] | None
    ) -> None:
        self._path, self._facts, self._convert = path, json.loads(json.dumps(facts)), convert
        self._partial, self._state = Path(f"{path}.partial"), Path(f"{path}.partial.json")
        self.rows, self._bytes, self._recorded = 0, 0, time.monotonic()
        self.complete = False
        state = None if overwrite or facts is None else self._read_state()
        exists = self._exists()
        if state is None and exists and not overwrite:
            name = self._shown_name()
            raise OutputError(f"{name}: expected no file, found one; choose another name, or use --overwrite")
        self.complete = state is not None and exists and not self._partial.exists()
        if self.complete:
            self._state.unlink()
            self.rows = state["rows"] if state else 0
            return
        self._file = self._partial.open("ab", buffering=0)
        try:
            self._lock()
            if state is None:
                self._state.unlink(missing_ok=True)
            else:
                self.rows, self._bytes = state["rows"], state["bytes"]
            self._cut()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> FileOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self.complete:
            return
        try:
            if self.rows:
                self._record()
            else:
                self._partial.unlink()
                self._state.unlink(missing_ok=True)
        finally:
            self._file.close()

    def write_header(self, content: bytes) -> None:
        if not self._bytes:
            self.write(content, 0)

    def write(self, content: bytes, rows: int) -> None:
        _write(self._file, content, str(self._partial))
        self.rows, self._bytes = rows, self._bytes + len(content)
        if time.monotonic() - self._recorded >= _SECONDS_BETWEEN_STATES:
            self._record()

    def finish(self) -> None:
        self._record()
        if self._convert is None:
            self._publish(self._partial)
        else:
            converted = Path(f"{self._path}.converted")
            with _named(str(converted)):
                self._convert(self._partial, converted)
            self._publish(converted)
            self._partial.unlink()
        self._state.unlink()
        self._file.close()
        self.complete = True

    def _exists(self) -> bool:
        """Whether the output exists."""
        return self._path.exists()

    def _publish(self, file: Path) -> None:
        """Make a complete file the output, in one step."""
        file.replace(self._path)

    def _shown_name(self) -> str:
        return str(self._path)

    def _record(self) -> None:
        """Record the number of finished rows, after the bytes of these rows are on the disk."""
        self._recorded = time.monotonic()
        with _named(str(self._partial)):
            os.fsync(self._file.fileno())
        state = {"format_version": _FORMAT_VERSION, "facts": self._facts, "rows": self.rows, "bytes": self._bytes}
        new = Path(f"{self._state}.new")
        with _named(str(new)):
            new.write_text(json.dumps(state), encoding="utf-8")
        new.replace(self._state)

    def _read_state(self) -> dict[str, Any] | None:
        """The state of an unfinished run with the same facts; None if there is no unfinished run."""
        try:
            state: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
            found, version = state["facts"], state["format_version"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise OutputError(
                f"{self._state}: expected the state of a task, found other content; use --overwrite"
            ) from None
        for name, expected in ({"format_version": _FORMAT_VERSION} | self._facts).items():
            other = ({"format_version": version} | found).get(name)
            if other != expected:
                raise OutputError(
                    f"{self._partial}: its task was started with {name} {_shown(other)}, found {_shown(expected)}; "
                    "continue with the same input and options, or start again with --overwrite"
                )
        return state

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{self._partial}: another process writes this file; wait until it has ended") from None

    def _cut(self) -> None:
        """Remove the bytes after the last finished row."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._bytes:
            raise OutputError(
                f"{self._partial}: expected at least {self._bytes:,} bytes, found {size:,}; start again: --overwrite"
            )
        self._file.truncate(self._bytes)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _write(file: Any, content: bytes, name: str) -> None:
    """Write all bytes to an unbuffered file, which may take only some of them at a time."""
    left = memoryview(content)
    with _named(name):
        while left:
            left = left[file.write(left) :]


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Give an error of the system the name of the file, for example to the error of a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or name) from None
