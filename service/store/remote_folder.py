"""A folder at a URL, through fsspec: small files are read whole, large ones piece by piece.

Whatever a driver raises, and each has errors of its own, becomes a StoreError of one line; only "there is no such file"
is told apart. A URL may hold credentials: no name and no message does.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from ftplib import error_temp
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from service.errors import StoreError

_MOST_BYTES = 1 << 20
_PIECE_BYTES = 8 << 20
_PATIENCE_SECONDS = 15
_ATTEMPTS = 2

# User and password, which may hold a bare slash or @ where no port can be meant; or a user alone.
_CREDENTIALS = re.compile(r"(?<=://)(?:(?![^/:@]+:\d+/)[^/@]*:.*|[^/]*)@")


def without_credentials(url: str) -> str:
    """A URL as messages may show it: without user, password and query."""
    return re.split(r"[?#]", _CREDENTIALS.sub("", url))[0].rstrip("/")


class RemoteFolder:
    """A folder at a URL.

    A filesystem belongs to the thread that connected it, as an FTP connection must, and is connected anew in a forked
    process and after any trouble. Nothing that it lists is remembered: CURRENT changes.

    Attributes:
        name: The URL without credentials.
    """

    def __init__(self, url: str) -> None:
        self.name = without_credentials(url)
        self._url = url
        self._own = threading.local()

    def read(self, name: str) -> bytes | None:
        """A small file's content; None where there is no such file.

        Raises:
            StoreError: If it cannot be read, or is not small.
        """
        try:
            with self._connected(name) as (files, path), files.open(path, "rb") as file:
                content: bytes = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(content) > _MOST_BYTES:
            raise StoreError(f"{self.name}/{name}: expected at most {_MOST_BYTES:,} bytes, found more; write it again")
        return content

    def pieces(self, name: str) -> Iterator[bytes]:
        """A file's content, piece by piece.

        Raises:
            StoreError: If it cannot be read to its end.
        """
        try:
            with self._connected(name) as (files, path), files.open(path, "rb", block_size=_PIECE_BYTES) as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece
        except FileNotFoundError:
            raise StoreError(f"{self.name}/{name}: expected a file of the bundle, found none; build it again") from None

    def names(self, folder: str) -> list[str]:
        """Names of all that is in one of its folders; none where there is no such folder.

        Raises:
            StoreError: If it cannot be listed.
        """
        try:
            with self._connected(folder) as (files, path):
                return [each.rstrip("/").rpartition("/")[2] for each in files.ls(path, detail=False)]
        except FileNotFoundError:
            return []

    def has(self, name: str) -> bool:
        """Whether there is such a file.

        Raises:
            StoreError: If that cannot be told.
        """
        try:
            with self._connected(name) as (files, path):
                files.info(path)
        except FileNotFoundError:
            return False
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a small file.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._writing(name) as (files, path):
            files.pipe_file(path, content)

    def upload(self, local: Path, name: str) -> None:
        """Write a file of any size.

        Raises:
            StoreError: If it cannot be written.
        """
        with self._writing(name) as (files, path):
            files.put_file(str(local), path)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[tuple[Any, str]]:
        try:
            with self._connected(name) as (files, path):
                if not files.async_impl:  # the others are object stores, which need no folders and may make buckets
                    files.makedirs(path.rpartition("/")[0], exist_ok=True)
                yield files, path
        except FileNotFoundError as error:
            raise self._trouble(name, error) from None

    @contextlib.contextmanager
    def _connected(self, name: str) -> Iterator[tuple[Any, str]]:
        """The filesystem, and where the file lies in it."""
        try:
            files, root = self._connect()
            files.invalidate_cache()
            yield files, f"{root}/{name}"
        except StoreError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and not _could_not_ask(error):
                raise
            self._own.connection = None
            raise self._trouble(name, error) from None

    def _connect(self) -> tuple[Any, str]:
        connection = getattr(self._own, "connection", None)
        if connection is None or connection[0] != os.getpid():
            connection = self._own.connection = os.getpid(), *self._open()
        return connection[1:]

    def _open(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs
        from fsspec.registry import get_filesystem_class

        protocol = self._url.split("://")[0]
        try:
            get_filesystem_class(protocol)
        except ImportError as error:
            missing = getattr(error.__cause__, "name", None) or protocol
            package = {"s3fs": "'recollect[s3]'"}.get(missing, missing)
            raise StoreError(f"{self.name}: needs {missing}, which is not installed; pip install {package}") from None
        except ValueError:
            raise StoreError(
                f"{self.name}: expected a protocol that fsspec knows, as s3, gs, abfs, https or ftp, found {protocol!r}"
            ) from None
        files, root = url_to_fs(self._url, skip_instance_cache=True, **{protocol: _patience(protocol)})
        if hasattr(files, "retries"):
            files.retries = _ATTEMPTS
        return files, root.rstrip("/")

    def _trouble(self, name: str, error: BaseException | None) -> StoreError:
        if isinstance(error, FileNotFoundError) and _could_not_ask(error):
            error = error.__cause__
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].replace(self._url, self.name)
        for secret in self._secrets():
            reason = reason.replace(secret, "***")
        reason = "".join(each if each.isprintable() else "?" for each in reason[:300])
        return StoreError(
            f"{self.name}/{name}: expected an answer, found: {reason}; check the URL, the network and the credentials, "
            "which each driver takes from its usual variables and files"
        )

    def _secrets(self) -> list[str]:
        """All that no message may hold, the longest first: a driver may split or quote what it was given."""
        found = [match[:-1] for match in _CREDENTIALS.findall(self._url)] + self._url.split("?")[1:]
        parts = {part for each in found for part in (each, each.partition(":")[2], *re.split("[:/@]", each))}
        forms = {form for part in parts for form in (part, unquote(part), quote(unquote(part), safe=""))}
        return sorted(filter(None, forms), key=len, reverse=True)


def _could_not_ask(error: FileNotFoundError) -> bool:
    """Whether a driver says "no such file" although it was not told so: those of HTTP and FTP do after any error."""
    cause = error.__cause__
    if isinstance(cause, error_temp | ConnectionError | TimeoutError | ValueError):
        return True
    return type(cause).__module__.startswith("aiohttp.") and getattr(cause, "status", None) != HTTPStatus.NOT_FOUND


def _patience(protocol: str) -> dict[str, Any]:
    """What keeps a filesystem from waiting for ever, where its driver has no such bound of its own.

    What the user configured for the protocol, in fsspec's variables and files, stays.
    """
    from fsspec.config import conf

    options: dict[str, Any] = {}
    match protocol:
        case "s3" | "s3a":  # s3fs bounds its connections, but it tries again what botocore has tried again
            options = {"config_kwargs": {"retries": {"total_max_attempts": _ATTEMPTS}}}
        case "http" | "https":
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(total=None, sock_connect=_PATIENCE_SECONDS, sock_read=_PATIENCE_SECONDS)
            options = {"client_kwargs": {"timeout": timeout}}
        case "ftp" | "sftp" | "ssh":
            options = {"timeout": _PATIENCE_SECONDS}
        case "gs" | "gcs":
            options = {"requests_timeout": _PATIENCE_SECONDS}
        case "abfs" | "abfss" | "az":
            options = {"connection_timeout": _PATIENCE_SECONDS, "read_timeout": _PATIENCE_SECONDS}
    return {name: value for name, value in options.items() if name not in conf.get(protocol, {})}
