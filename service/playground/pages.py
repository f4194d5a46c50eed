"""Serves the web pages: the playground from the files in `static/`, and Swagger UI from those in `swagger_ui/`.

The playground is plain HTML, CSS and JavaScript modules, without a build step. A page loads nothing from other servers.
One route has the facts that only the playground shows.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from recollect.core.bundle.manifest import Check, Point
from recollect.core.bundle.strings import StringTable
from recollect.core.options import schemas_of_defaults
from recollect.core.texts import is_blank
from recollect.service.versions.open_versions import OpenVersions

_STATIC, _SWAGGER_UI = Path(__file__).with_name("static"), Path(__file__).with_name("swagger_ui")
# Number of examples that a page shows, and maximum number of their characters.
_EXAMPLES, _MAX_CHARACTERS = 24, 120
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
    for file in (_SWAGGER_UI / "swagger-ui-bundle.js", _SWAGGER_UI / "swagger-ui.css", _STATIC / "icon.svg"):
        router.add_route(f"/docs/{file.name}", _StaticFile(file.read_bytes(), file.suffix, policy).respond)


class BundleFacts(BaseModel):
    """The answer of `GET /playground/bundle`: training texts to ask, and all measurements of the build.

    `options` are the JSON Schemas of the options with a default in the bundle. `fields` are the fields by which labels
    can be filtered. `rerank` tells whether the version has a cross-encoder; `docs`, whether a browser can open `/docs`;
    `writable`, whether this API key may change the memory.
    """

    version: str
    examples: list[str]
    curves: dict[str, list[Point]]
    checks: list[Check]
    size_bytes: int
    options: dict[str, dict[str, Any]]
    fields: list[str]
    rerank: bool
    docs: bool
    writable: bool


@dataclass(frozen=True)
class FactsRoute:
    """The handler of `GET /playground/bundle`."""

    versions: OpenVersions
    docs: bool
    writable: bool

    def bundle(self, request: Request) -> BundleFacts:  # not async, because reading mapped texts may wait for the disk
        """Return examples and measurements of the current version, and the rights of the API key."""
        key = request.scope.get("api_key")
        with self.versions.lease() as predictor:
            manifest = predictor.manifest
            return BundleFacts(
                version=manifest.version,
                examples=example_queries(predictor.bundle.instances.texts),
                curves=manifest.curves,
                checks=manifest.checks,
                size_bytes=manifest.size_bytes,
                options=schemas_of_defaults(),
                fields=sorted(predictor.memory.labels.valued_fields()),
                rerank=manifest.has_cross_encoder,
                docs=self.docs,
                writable=self.writable and key is not None and key.writes,
            )


def example_queries(all_texts: StringTable) -> list[str]:
    """Short training texts, from evenly spaced rows of the memory."""
    rows = np.linspace(0, len(all_texts) - 1, num=4 * _EXAMPLES, dtype=int)
    texts = dict.fromkeys(all_texts[row].strip() for row in rows.tolist())
    short = [text for text in texts if len(text) <= _MAX_CHARACTERS and not is_blank(text)]
    return short[:: max(1, len(short) // _EXAMPLES)][:_EXAMPLES]
