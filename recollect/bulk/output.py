"""The output of bulk answers, which is complete or absent, and which a task that was killed continues.

A task writes to OUTPUT.partial, and about once a second the number of finished rows and bytes to OUTPUT.partial.json.
At the end, OUTPUT.partial is renamed, or uploaded to the output's URL. A later run of the same task cuts OUTPUT.partial
to the bytes of finished rows, and continues with the next row, with the live entries of the first run.
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
from typing import Any

from recollect.bulk.reading import split_url
from recollect.core.errors import OutputError
from recollect.core.system.files import read_json, write_json
from recollect.store.object_folder import ObjectFolder

_FORMAT_VERSION = 2
_SECONDS_BETWEEN_STATES = 1.0


class Output:
    """Standard output, a pipe or a device, which cannot be continued. Use it as a context manager.

    `rows` are written so far, and all of them are answered with the live entries up to `sequence`.
    """

    def __init__(self, path: Path | None, sequence: int) -> None:
        self.rows, self.sequence = 0, sequence
        self._bytes, self._name = 0, "standard output" if path is None else str(path)
        if path is None:  # unbuffered, so that no bytes are left for the exit of Python if the output is full
            sys.stdout.flush()
            self._file: Any = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        else:
            self._file = path.open("wb", buffering=0)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write_header(self, content: bytes) -> None:
        """Write the bytes before the first row, unless an earlier run has written them."""
        if not self._bytes:
            self.write(content, 0)

    def write(self, content: bytes, rows: int) -> None:
        """Write the next rows; `rows` is the number of all rows after this."""
        left = memoryview(content)
        with _named(self._name):
            while left:  # an unbuffered file may take only some of the bytes at a time
                left = left[self._file.write(left) :]
        self.rows, self._bytes = rows, self._bytes + len(content)

    def finish(self) -> None:
        """Complete the output after its last row."""


class FileOutput(Output):
    """A file or a file at a URL, which is written in the current folder and uploaded when it is complete.

    The end of the context records the last finished rows.

    Args:
        facts: All that decides the content of the file, by name. A run with other facts does not continue this one.
            None: no run can be continued, because its input cannot be read again.
        sequence: Number of the last live entry. A run that continues keeps the number of the first run.
        overwrite: Whether to replace an existing file, and to forget an unfinished run.
        convert: Makes the output from the finished partial file; None: the partial file is the output.

    Raises:
        OutputError: If the file exists, or an unfinished run has other facts or still runs.
        OSError: If the file cannot be written.
    """

    def __init__(
        self,
        target: Path | str,
        facts: dict[str, Any] | None,
        sequence: int,
        overwrite: bool,
        convert: Callable[[Path, Path], None] | None = None,
    ) -> None:
        self._folder: ObjectFolder | None
        self._folder, name = split_url(target, "--output") if isinstance(target, str) else (None, str(target))
        self._path, self._partial, self._state = Path(name), Path(f"{name}.partial"), Path(f"{name}.partial.json")
        self._facts, self._convert, self._complete = json.loads(json.dumps(facts)), convert, False
        self.rows, self.sequence = 0, sequence
        self._bytes, self._name, self._recorded = 0, str(self._partial), time.monotonic()
        state = None if overwrite or facts is None else self._read_state()
        if state is not None:
            self.rows, self.sequence, self._bytes = state["rows"], state["sequence"], state["bytes"]
        elif not overwrite and (self._folder.has(name) if self._folder else self._path.exists()):
            shown = f"{self._folder.name}/{name}" if self._folder else name
            raise OutputError(f"{shown}: expected no file, found one; choose another name, or use --overwrite")
        self._file = self._partial.open("ab", buffering=0)
        try:
            self._lock()
            if state is None:
                self._state.unlink(missing_ok=True)
            self._cut()
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *_: object) -> None:
        with self._file:
            if self.rows and not self._complete:
                self._record()
            elif not self._complete:
                self._partial.unlink()
                self._state.unlink(missing_ok=True)

    def write(self, content: bytes, rows: int) -> None:
        super().write(content, rows)
        if time.monotonic() - self._recorded >= _SECONDS_BETWEEN_STATES:
            self._record()

    def finish(self) -> None:
        self._record()
        finished = self._partial
        if self._convert is not None:
            finished = Path(f"{self._path}.converted")
            with _named(str(finished)):
                self._convert(self._partial, finished)
        if self._folder is None:
            finished.replace(self._path)
        else:
            self._folder.upload(finished, self._path.name)
            finished.unlink()
        self._partial.unlink(missing_ok=True)
        self._state.unlink()
        self._complete = True

    def _record(self) -> None:
        """Record the number of finished rows, after the bytes of these rows are on the disk."""
        self._recorded = time.monotonic()
        with _named(self._name):
            os.fsync(self._file.fileno())
        state = {
            "format_version": _FORMAT_VERSION,
            "facts": self._facts,
            "sequence": self.sequence,
            "rows": self.rows,
            "bytes": self._bytes,
        }
        with _named(str(self._state)):
            write_json(self._state, state)

    def _read_state(self) -> dict[str, Any] | None:
        """The state of an unfinished run with the same facts; None if there is no unfinished run."""
        try:
            state: dict[str, Any] = read_json(self._state)
            first_run = {"format_version": state["format_version"]} | state["facts"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise OutputError(
                f"{self._state}: expected the state of a task, found other content; use --overwrite"
            ) from None
        expected = {"format_version": _FORMAT_VERSION} | self._facts
        for name in [*expected, *first_run]:
            if first_run.get(name) != expected.get(name):
                raise OutputError(
                    f"{self._partial}: its task was started with {name} {_shown(first_run.get(name))}, found "
                    f"{_shown(expected.get(name))}; continue with the same input and options, or start again with "
                    "--overwrite"
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


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Give an error of the system the name of the file, for example to the error of a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or name) from None
