"""A folder of files in an object store. Small files are read completely, large files in pieces. Nothing is cached.

A plain web server is read-only, and cannot list a folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from recollect.core.errors import StoreError
from recollect.core.system.console import printable
from recollect.store.connect import connect, require_scheme, without_credentials
from recollect.store.files import MAX_SMALL_BYTES, FolderFiles, FolderStatus

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
# A file that shows whether a server has conditional writes: the second attempt to create it must fail.
_CREATE_CHECK = ".create-check"

_STATUS = re.compile(r"non-2xx status code: ([^:\n]+)")
_XML_MESSAGE = re.compile(r"<Message>([^<]+)")
_SYSTEM_ERROR = re.compile(r'(?:message|error): "([^"\\]+)"')


class ObjectFolder:
    """The files of a store in a folder of an object store, named by a URL. It has the methods of `FolderFiles`.

    Every failure raises a StoreError with a one-line message without credentials.

    Several threads may use one object. obstore's own threads do not survive a fork, so a process that was forked after
    the first use gets an error instead of waiting for ever.
    """

    _first_process: ClassVar[int | None] = None

    def __init__(self, url: str) -> None:
        self.can_list = require_scheme(url) not in ("http", "https")  # a web server lists folders only with WebDAV
        self.name = without_credentials(url)
        self._url = url
        self._is_checked = False
        self._clients: dict[timedelta, ObjectStore] = {}

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            content = bytes(next(iter(self._connect(_READ_TIMEOUT).get(name).stream(max_bytes + 1)), b""))
            if len(content) > max_bytes:
                raise StoreError(f"{self.name}/{name}: expected at most {max_bytes:,} bytes, found more; restore it")
            return content
        return None

    def pieces(self, name: str) -> Iterator[bytes]:
        try:
            with self._errors(name):
                yield from self._connect(_READ_TIMEOUT).get(name).stream(_PIECE_BYTES)
        except FileNotFoundError:
            raise StoreError(f"{self.name}/{name}: expected a file of the bundle, found none; build it again") from None

    def clone(self, name: str, target: int) -> bool:
        return False  # an object store shares no disk blocks with this machine

    def names(self, folder: str, after: str = "") -> list[str]:
        if after:  # the server lists only the later names; such a folder has no folders in it
            with self._errors(folder):
                client = self._connect(_READ_TIMEOUT)
                listed = client.list(folder, offset=f"{folder}/{after}", chunk_size=_LISTED_AT_ONCE)
                names = [file["path"].rpartition("/")[2] for chunk in listed for file in chunk]
        else:
            folders, files = self._list(folder)
            names = [*folders, *files]
        return sorted(name for name in names if not name.startswith("."))

    def has(self, name: str) -> bool:
        return self.size_bytes(name) is not None

    def size_bytes(self, name: str) -> int | None:
        """Size of a file; None if the file does not exist."""
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            return self._connect(_READ_TIMEOUT).head(name)["size"]
        return None

    def create(self, name: str, content: bytes) -> bool:
        self.require_writable()
        # obstore repeats a request whose answer was lost. So if the file exists or the request fails, the stored
        # content shows whether this call has written it.
        try:
            return self._put_new(name, content) or self._holds(name, content)
        except StoreError:
            with contextlib.suppress(StoreError):
                if self._holds(name, content):
                    return True
            raise

    def require_writable(self) -> None:
        """As in `FolderFiles`, and that a file can be created only once: some servers ignore the condition silently."""
        if self._is_checked:
            return
        if not self.can_list:
            raise StoreError(
                f"{self.name}: expected an object store or a folder to write to, found a web server, which can only be "
                "read; write to the folder that it serves"
            )
        if self._put_new(_CREATE_CHECK, b"") and self._put_new(_CREATE_CHECK, b""):
            raise self._no_conditional_writes()
        self._is_checked = True

    def delete(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._errors(name):
                self._connect(_READ_TIMEOUT).delete(name)

    def upload(self, local: Path, name: str, keep: bool = True) -> None:
        with self._errors(name, writing=True):
            client = self._connect(_UPLOAD_TIMEOUT)
            client.put(name, local, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def status(self, folder: str) -> FolderStatus:
        _, files = self._list(folder)
        modified = max((status.modified for status in files.values()), default=datetime.fromtimestamp(0, UTC))
        return FolderStatus(sum(status.size_bytes for status in files.values()), modified)

    def delete_folder(self, folder: str) -> None:
        self.delete(*(f"{folder}/{name}" for name in self._list(folder)[1]))

    def _list(self, folder: str) -> tuple[list[str], dict[str, FolderStatus]]:
        """The names of the folders in a folder, and its files."""
        with contextlib.suppress(FileNotFoundError), self._errors(folder):
            listed = self._connect(_READ_TIMEOUT).list_with_delimiter(folder)
            folders = [path.rpartition("/")[2] for path in listed["common_prefixes"]]
            files = {
                file["path"].rpartition("/")[2]: FolderStatus(file["size"], file["last_modified"])
                for file in listed["objects"]
            }
            return folders, files
        return [], {}

    def _holds(self, name: str, content: bytes) -> bool:
        """Whether a file has this content."""
        return self.size_bytes(name) == len(content) and self.read(name, len(content)) == content

    def _put_new(self, name: str, content: bytes) -> bool:
        """Write a small file if it does not exist; return whether it was written."""
        from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, PreconditionError

        with self._errors(name, writing=True):
            try:
                self._connect(_READ_TIMEOUT).put(name, content, mode="create", use_multipart=False)
                return True
            except (AlreadyExistsError, PreconditionError):
                return False
            except (NotSupportedError, NotImplementedError):
                raise self._no_conditional_writes() from None
            except GenericError as error:
                if "501 Not Implemented" not in str(error):
                    raise
                raise self._no_conditional_writes() from None

    def _no_conditional_writes(self) -> StoreError:
        return StoreError(
            f"{self.name}: expected a server with conditional writes (If-None-Match), found one without; "
            "several writers could overwrite each other: use another object store, or a folder"
        )

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


StoreFiles = FolderFiles | ObjectFolder


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
