"""A folder of files in an object store. Small files are read completely, large files in pieces. Nothing is cached.

It has the methods of `StoreFiles`. A plain web server is read-only, and cannot list a folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from recollect.service.console import printable
from recollect.service.errors import ActivationConflictError, StoreError
from recollect.service.storage.connect import connect, require_scheme, without_credentials
from recollect.service.storage.control_files import MAX_LOG_BYTES
from recollect.service.store.files import MAX_SMALL_BYTES

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PIECE_BYTES = 8 << 20
_READ_TIMEOUT = timedelta(seconds=15)
# Time limit for an answer. While one part of an upload is sent, no answer arrives, and a slow network needs long for
# one part.
_UPLOAD_TIMEOUT = timedelta(minutes=5)
# Size of one part of an upload. A part stays in memory while it is sent. S3 allows 10,000 parts in a file, so a file
# can have up to 156 GiB.
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 4
_LISTED_AT_ONCE = 1_000
_UPDATE_ATTEMPTS = 20
# A file that shows whether a server has conditional writes: the second attempt to create it must fail.
_CREATE_CHECK = ".create-check"

_STATUS = re.compile(r"non-2xx status code: ([^:\n]+)")
_XML_MESSAGE = re.compile(r"<Message>([^<]+)")
_SYSTEM_ERROR = re.compile(r'(?:message|error): "([^"\\]+)"')


class FileStatus(NamedTuple):
    size_bytes: int
    modified: datetime


class ObjectFolder:
    """A folder in an object store, named by a URL.

    Every failure raises a StoreError with a one-line message without credentials.

    Several threads may use one object. obstore's own threads do not survive a fork, so a process that was forked after
    the first use gets an error instead of waiting for ever.

    Attributes:
        name: The URL without credentials.
        can_list: Whether `names` works; False for a web server, which lists folders only with WebDAV.

    Raises:
        StoreError: If the URL's scheme is unknown.
    """

    _first_process: ClassVar[int | None] = None

    def __init__(self, url: str) -> None:
        self.can_list = require_scheme(url) not in ("http", "https")
        self.name = without_credentials(url)
        self._url = url
        self._writes_conditionally = False
        self._clients: dict[timedelta, ObjectStore] = {}

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        """The content of a small file; None if the file does not exist.

        Raises:
            StoreError: If the file cannot be read or is larger than `max_bytes`.
        """
        return self._read_with_tag(name, max_bytes)[0]

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file in pieces of a few megabytes.

        Raises:
            StoreError: If the file does not exist or cannot be read to its end.
        """
        try:
            with self._errors(name):
                yield from self._connect(_READ_TIMEOUT).get(name).stream(_PIECE_BYTES)
        except FileNotFoundError:
            raise StoreError(f"{self.name}/{name}: expected a file of the bundle, found none; build it again") from None

    def clone(self, name: str, target: int) -> bool:
        """False: an object store shares no disk blocks with this machine."""
        return False

    def names(self, folder: str, after: str = "") -> list[str]:
        """The sorted names in a folder that come after the name `after`; an empty list if there is no such folder.

        With `after`, the server lists only the names after it, and the folder must have no folders.

        Raises:
            StoreError: If the folder cannot be listed; a web server lists folders only with WebDAV.
        """
        if after:
            with self._errors(folder):
                client = self._connect(_READ_TIMEOUT)
                listed = client.list(folder, offset=f"{folder}/{after}", chunk_size=_LISTED_AT_ONCE)
                return sorted(each["path"].rpartition("/")[2] for chunk in listed for each in chunk)
        folders, files = self._list(folder)
        return sorted([*folders, *files])

    def files(self, folder: str) -> dict[str, FileStatus]:
        """Size and age of each file in a folder; an empty result if the folder does not exist.

        Raises:
            StoreError: As in `names`.
        """
        return self._list(folder)[1]

    def has(self, name: str) -> bool:
        """Whether a file exists.

        Raises:
            StoreError: If the server does not answer the question.
        """
        return self.size_bytes(name) is not None

    def size_bytes(self, name: str) -> int | None:
        """Size of a file; None if the file does not exist.

        Raises:
            StoreError: As in `has`.
        """
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            return self._connect(_READ_TIMEOUT).head(name)["size"]
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file.

        Raises:
            StoreError: If the file cannot be written.
        """
        with self._errors(name, writing=True):
            self._connect(_READ_TIMEOUT).put(name, content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if it does not exist; return whether it was written.

        obstore repeats a request whose answer was lost. So if the file exists or the request fails, the stored content
        shows whether this call has written it.

        Raises:
            StoreError: If the file cannot be written, or the server has no conditional writes.
        """
        if not self._writes_conditionally:
            self._require_conditional_writes()
            self._writes_conditionally = True
        try:
            return self._put(name, content, "create") or self._holds(name, content)
        except StoreError:
            with contextlib.suppress(StoreError):
                if self._holds(name, content):
                    return True
            raise

    def update(self, name: str, change: Callable[[bytes | None], bytes], max_bytes: int = MAX_SMALL_BYTES) -> None:
        """Replace a small file by a change of its content.

        If another process replaces the file meanwhile, the change is computed again from the new content. If the server
        does not support conditional writes, the last writer wins.

        Args:
            name: The file.
            change: Returns the new content for the old content, which is None if the file does not exist.
            max_bytes: Maximum size of the old content.

        Raises:
            ActivationConflictError: If other processes replace the file again and again.
            StoreError: If the file cannot be read or written.
        """
        new = None
        for _ in range(_UPDATE_ATTEMPTS):
            content, tag = self._read_with_tag(name, max_bytes)
            if new is not None and content == new:  # an earlier attempt was successful, but its answer was lost
                return
            new = change(content)
            if new == (content or b"") or self._write_if_unchanged(name, new, None if content is None else tag or ""):
                return
        raise ActivationConflictError(
            f"{self.name}/{name}: other processes change this file at the same time; try again when they have finished"
        )

    def append(self, name: str, missing: Callable[[bytes | None], bytes]) -> None:
        """Append to a small file; see `update`. `missing` returns the bytes to append to the old content."""
        self.update(name, lambda content: (content or b"") + missing(content), MAX_LOG_BYTES)

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """No lock: an object store has none, and `update` does not need one."""
        return contextlib.nullcontext()

    def delete(self, *names: str) -> None:
        """Delete files; a file that does not exist is not an error.

        Raises:
            StoreError: If a file cannot be deleted.
        """
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._errors(name):
                self._connect(_READ_TIMEOUT).delete(name)

    def upload(self, local: Path, name: str) -> None:
        """Write a file of any size. The file appears complete, or not at all.

        Raises:
            StoreError: If the file cannot be written.
        """
        with self._errors(name, writing=True):
            client = self._connect(_UPLOAD_TIMEOUT)
            client.put(name, local, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def _list(self, folder: str) -> tuple[list[str], dict[str, FileStatus]]:
        """The names of the folders in a folder, and its files."""
        with contextlib.suppress(FileNotFoundError), self._errors(folder):
            listed = self._connect(_READ_TIMEOUT).list_with_delimiter(folder)
            folders = [path.rpartition("/")[2] for path in listed["common_prefixes"]]
            files = {
                each["path"].rpartition("/")[2]: FileStatus(each["size"], each["last_modified"])
                for each in listed["objects"]
            }
            return folders, files
        return [], {}

    def _read_with_tag(self, name: str, max_bytes: int) -> tuple[bytes | None, str | None]:
        """The content of a small file and its entity tag; None and None if the file does not exist."""
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            result = self._connect(_READ_TIMEOUT).get(name)
            content = bytes(next(iter(result.stream(max_bytes + 1)), b""))
            if len(content) > max_bytes:
                raise StoreError(
                    f"{self.name}/{name}: expected at most {max_bytes:,} bytes, found more; write it again"
                )
            return content, result.meta["e_tag"]
        return None, None

    def _require_conditional_writes(self) -> None:
        """Check that the server refuses to create a file twice. Some servers ignore the condition without an error.

        Raises:
            StoreError: If the server has no conditional writes, or cannot be written to.
        """
        if not self.can_list:
            raise StoreError(
                f"{self.name}: expected an object store or a folder to write to, found a web server, which can only be "
                "read; write to the folder that it serves"
            )
        was_refused = (self._put(_CREATE_CHECK, b"", "create") is False for _ in range(2))
        if not any(was_refused):
            raise StoreError(
                f"{self.name}: expected a server with conditional writes (If-None-Match), found one without; "
                "several writers could overwrite each other: use another object store, or a folder"
            )

    def _holds(self, name: str, content: bytes) -> bool:
        """Whether a file has this content."""
        return self.size_bytes(name) == len(content) and self.read(name, len(content)) == content

    def _write_if_unchanged(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write a small file if it has not changed; return whether it was written.

        Args:
            name: The file.
            content: The new content.
            tag: The entity tag that the file must have; None: the file must not exist; empty: the server sends no tags,
                so the file is written in any case.
        """
        if tag != "" and (written := self._put(name, content, "create" if tag is None else {"e_tag": tag})) is not None:
            return written
        self.write(name, content)
        return True

    def _put(self, name: str, content: bytes, mode: Any) -> bool | None:
        """Write a small file on a condition; return whether it was written, or None if the server has no conditions."""
        from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, PreconditionError

        with self._errors(name, writing=True):
            try:
                self._connect(_READ_TIMEOUT).put(name, content, mode=mode)
                return True
            except (AlreadyExistsError, PreconditionError):
                return False
            except (NotSupportedError, NotImplementedError):
                return None
            except GenericError as error:
                if "501 Not Implemented" not in str(error):
                    raise
                return None

    def _connect(self, read_timeout: timedelta) -> ObjectStore:
        if ObjectFolder._first_process is None:
            ObjectFolder._first_process = os.getpid()
        if ObjectFolder._first_process != os.getpid():
            raise StoreError(
                f"{self.name}: this process was forked after a store at a URL was used, which obstore does not "
                "support; use the store only after the fork"
            )
        if read_timeout not in self._clients:
            self._clients[read_timeout] = connect(self._url, read_timeout)
        return self._clients[read_timeout]

    @contextlib.contextmanager
    def _errors(self, name: str, writing: bool = False) -> Iterator[None]:
        """Convert obstore's errors to StoreError. While reading, FileNotFoundError is not converted."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # obstore raises its own errors, ValueError, and boto3's errors
            if isinstance(error, FileNotFoundError) and not writing:
                raise
            raise StoreError(
                f"{self.name}/{name}: expected an answer, found: {_reason(error)}; "
                "check the URL, the network and the credentials"
            ) from None


def _reason(error: Exception) -> str:
    """The cause in one line. obstore's text also holds the request, its time, and a dump of its own objects."""
    summary, _, details = str(error).partition("\n\nDebug source:")
    if "/latest/api/token" in summary:
        return "no AWS credentials in the environment, and none from the machine's metadata service"
    if status := _STATUS.search(summary):
        causes = [status[1], *_XML_MESSAGE.findall(summary)[:1]]
    else:
        causes = [summary.rpartition(" - ")[2].partition("\n")[0], *_SYSTEM_ERROR.findall(details)[:1]]
        causes += ["timed out"] if "TimedOut" in details else []
    reason = re.sub(r"\?\S+", "", ": ".join(causes)) or type(error).__name__  # a URL query may contain a signature
    return printable(reason[:300])
