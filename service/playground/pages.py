"""Serves the web pages: the playground from the files in `static/`, and Swagger UI from the package fastapi-swagger.

The playground is plain HTML, CSS and JavaScript modules, without a build step. A page loads nothing from other servers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

_STATIC = Path(__file__).with_name("static")
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}

# A page may load and send only to its own server.
_OWN_SERVER = (
    "default-src 'none'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# The playground may not contain scripts or styles, and it may not turn text into HTML: a text of the memory could
# otherwise run as a script.
_PLAYGROUND_POLICY = (
    f"{_OWN_SERVER}; script-src 'self'; img-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
)


class _StaticFile:
    """A file in memory, with the headers of its response."""

    def __init__(self, content: bytes, suffix: str, policy: str) -> None:
        self._content = content
        self._headers = {
            "Content-Type": _MEDIA_TYPES[suffix],
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            # Browsers ask again each time, so that a page never mixes files of two releases.
            "Cache-Control": "no-cache",
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        }

    async def respond(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


def add_playground(router: Router) -> None:
    """Serve the playground at `/`, and its files below `/playground/`."""
    for file in _STATIC.rglob("*.*"):
        path = "/" if file.suffix == ".html" else f"/playground/{file.relative_to(_STATIC).as_posix()}"
        router.add_route(path, _StaticFile(file.read_bytes(), file.suffix, _PLAYGROUND_POLICY).respond)


def add_docs(router: Router) -> None:
    """Serve Swagger UI with the HTTP API at `/docs` and `/redoc`, and its files below `/docs/`."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Recollect HTTP API",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/icon.svg",
    ).body
    # The page has one script of its own. Swagger UI has its pictures in its style sheet.
    script = re.findall(rb"<script>(.*?)</script>", bytes(page), re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = f"{_OWN_SERVER}; script-src 'self' 'sha256-{digest}'; img-src 'self' data:"
    for path in ("/docs", "/redoc"):
        router.add_route(path, _StaticFile(bytes(page), ".html", policy).respond)
    swagger_ui = resources.files("fastapi_swagger.resources")
    for file in (swagger_ui / "swagger-ui-bundle.js", swagger_ui / "swagger-ui.css", _STATIC / "icon.svg"):
        suffix = f".{file.name.rpartition('.')[2]}"
        router.add_route(f"/docs/{file.name}", _StaticFile(file.read_bytes(), suffix, policy).respond)
