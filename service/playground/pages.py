"""Serves the web pages from the files in `static/`.

The files are plain HTML, CSS and JavaScript modules, without a build step. A page loads nothing from other servers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

_STATIC = Path(__file__).with_name("static")
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# A page may load and send only to its own server. It may not contain scripts or styles, and it may not turn text into
# HTML: a text of the memory could otherwise run as a script.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


class _StaticFile:
    """A file in memory, with the headers of its response."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._headers = {
            "Content-Type": f"{_MEDIA_TYPES[path.suffix]}; charset=utf-8",
            "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            # Browsers ask again each time, so that a page never mixes files of two releases.
            "Cache-Control": "no-cache",
            "ETag": f'"{hashlib.sha256(self._content).hexdigest()[:32]}"',
        }

    async def respond(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


def add_playground(router: Router) -> None:
    """Serve the playground at `/`, and its files below `/playground/`."""
    _add_page(router, "playground.html", ["/"], "/playground")


def add_docs(router: Router) -> None:
    """Serve the description of the HTTP API at `/docs` and `/redoc`, and its files below `/docs/`."""
    _add_page(router, "docs.html", ["/docs", "/redoc"], "/docs")


def _add_page(router: Router, page: str, paths: Iterable[str], folder: str) -> None:
    files = {path.relative_to(_STATIC).as_posix(): path for path in _STATIC.rglob("*.*")}
    for path in paths:
        router.add_route(path, _StaticFile(files[page]).respond)
    for name, file in files.items():
        if file.suffix != ".html":
            router.add_route(f"{folder}/{name}", _StaticFile(file).respond)
