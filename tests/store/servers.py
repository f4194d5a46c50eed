"""Local servers for stores at URLs: S3 by moto, a faulty proxy for it, and a plain web server for a folder."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from recollect.store.store import Store
from tests import web

TIMEOUT_SECONDS = 60


def publish(store: Store, bundle: Path, version: str) -> None:
    """Publish a copy of a bundle's folder in the same way as a builder."""
    with store.incoming() as folder:
        shutil.copytree(bundle, folder, dirs_exist_ok=True)
        store.publish(folder, version)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server, set the environment variables with which obstore finds it, and yield its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        try:
            yield address
        finally:
            server.stop()


def create_bucket(address: str, name: str) -> str:
    """Create an empty bucket; return the URL of a store in it."""
    bucket = "".join(each for each in name.lower() if each.isalnum())[-40:]
    httpx.put(f"{address}/{bucket}").raise_for_status()
    return f"s3://{bucket}/models/store"


class FaultyProxy:
    """Forwards requests to a server, with faults that a test chooses."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ignores_conditions = False  # the header `If-None-Match`
        self.lost_answers = 0  # of the next PUT requests, which are carried out
        self.has_expired = False  # so that all requests are refused

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Run the proxy; yield its URL."""
        with (
            httpx.Client(base_url=self.address, timeout=TIMEOUT_SECONDS) as client,
            web.answering(partial(_Forward, self, client)) as port,
        ):
            yield f"http://127.0.0.1:{port}"


class _Forward(web.Handler):
    def __init__(self, proxy: FaultyProxy, client: httpx.Client, *args: Any) -> None:
        self._proxy, self._client = proxy, client
        super().__init__(*args)

    def do_GET(self) -> None:  # noqa: N802
        if self._proxy.has_expired:
            refusal = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            self.answer(403, refusal, {"Connection": "close"})
            return
        dropped = {"if-none-match"} if self._proxy.ignores_conditions else set()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        answer = self._client.request(self.command, self.path, headers=headers, content=self.body())
        if self.command == "PUT" and self._proxy.lost_answers > 0:
            self._proxy.lost_answers -= 1
            self.close_connection = True
            return
        own = ("transfer-encoding", "connection", "content-length", "content-encoding", "date", "server")
        kept = {name: value for name, value in answer.headers.items() if name not in own}
        if self.command == "HEAD":
            kept["Content-Length"] = answer.headers.get("content-length", "0")
        self.answer(answer.status_code, answer.content, kept)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815


class WebServer:
    """A web server for the files of a folder, without range requests, uploads and folder listings.

    It sends the first half of `paused_file`, sets `paused`, and sends the other half after `resumed` is set.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.requests: list[str] = []  # their paths
        self.authorization: str | None = None  # of the last request
        self.denied = False  # if true, all requests get status 401
        self.paused_file = ""
        self.paused, self.resumed = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[WebServer]:
        """Serve the folder; after a stop, use the same port again."""
        handler = partial(_Handler, self, directory=str(self.folder))
        with web.answering(handler, self.port) as self.port:
            try:
                yield self
            finally:
                self.resumed.set()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, web: WebServer, *args: Any, **kwargs: Any) -> None:
        self._web = web
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:  # noqa: N802
        self._web.requests.append(self.path)
        self._web.authorization = self.headers["Authorization"]
        if self._web.denied:
            self.send_error(401, "wrong password")
            return
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        with contextlib.suppress(ConnectionError):  # a test killed the client process
            if self._web.paused_file and self.path.endswith(self._web.paused_file):
                outputfile.write(content[: len(content) // 2])
                outputfile.flush()
                self._web.paused.set()
                self._web.resumed.wait(TIMEOUT_SECONDS)
                content = content[len(content) // 2 :]
            outputfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
