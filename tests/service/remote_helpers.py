"""Real remote stores on this machine: S3 as moto answers it, and a plain web server over a folder."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from service.store.store import Store

PATIENCE_SECONDS = 60


def publish(store: Store, bundle: Path, version: str) -> None:
    """Publish a copy of a bundle's folder, as a builder does."""
    with store.incoming() as folder:
        shutil.copytree(bundle, folder, dirs_exist_ok=True)
        store.publish(folder, version)


class Web:
    """A folder behind a web server that knows no ranges, as Python's own; `asked` collects the paths of all GETs.

    Attributes:
        half: A file's name, of which only half is sent until `whole` is set; `begun` tells that this half was.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.asked: list[str] = []
        self.half = ""
        self.begun, self.whole = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def up(self) -> Iterator[Web]:
        """Answer meanwhile, on the same port every time."""
        handler = partial(_Handler, self, directory=str(self.folder))
        with ThreadingHTTPServer(("127.0.0.1", self.port), handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                self.whole.set()
                server.shutdown()
                thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, web: Web, *args: Any, **kwargs: Any) -> None:
        self._web = web
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:  # noqa: N802
        if "Authorization" in self.headers:
            self.send_error(401, "expected another password")
            return
        self._web.asked.append(self.path)
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        if self._web.half and self.path.endswith(self._web.half):
            outputfile.write(content[: len(content) // 2])
            outputfile.flush()
            self._web.begun.set()
            self._web.whole.wait(PATIENCE_SECONDS)
            content = content[len(content) // 2 :]
        with contextlib.suppress(ConnectionError):  # whoever asked was killed
            outputfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
