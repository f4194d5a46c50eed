"""Facts that only the playground shows: examples, the measurements of the build, and the rights of the API key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from fastapi import Request
from pydantic import BaseModel

from recollect.service.bundle.manifest import Check, Point
from recollect.service.bundle.strings import StringTable
from recollect.service.versions.open_versions import OpenVersions

# An example is a text of the memory with at most so many characters.
_MAX_CHARACTERS = 120
_EXAMPLES = 24


class BundleFacts(BaseModel):
    """The answer of `GET /playground/bundle`.

    Attributes:
        examples: Training texts, to ask as queries.
        curves: All measurements from which the build chose the index.
        docs: Whether a browser can open `/docs`.
        writable: Whether the API key of the request may change the memory.
    """

    version: str
    examples: list[str]
    curves: dict[str, list[Point]]
    checks: list[Check]
    size_bytes: int
    docs: bool
    writable: bool


@dataclass(frozen=True)
class FactsRoute:
    """The handler of `GET /playground/bundle`."""

    versions: OpenVersions
    docs: bool
    writable: bool

    def bundle(
        self, request: Request
    ) -> BundleFacts:  # not async: on a thread, because reading mapped texts may wait for the disk
        """Return examples and measurements of the current version, and the rights of the API key.

        Raises:
            NotReadyError: If no version is open yet.
        """
        key = request.scope.get("api_key")
        with self.versions.lease() as predictor:
            manifest = predictor.manifest
            return BundleFacts(
                version=manifest.version,
                examples=example_queries(predictor.bundle.instances.texts),
                curves=manifest.curves,
                checks=manifest.checks,
                size_bytes=manifest.size_bytes,
                docs=self.docs,
                writable=self.writable and key is not None and key.writes,
            )


def example_queries(all_texts: StringTable) -> list[str]:
    """Short training texts, from evenly spaced rows of the memory."""
    rows = np.linspace(0, len(all_texts) - 1, num=4 * _EXAMPLES, dtype=int)
    texts = dict.fromkeys(all_texts[row].strip() for row in rows.tolist())
    short = [text for text in texts if 0 < len(text) <= _MAX_CHARACTERS]
    return short[:: max(1, len(short) // _EXAMPLES)][:_EXAMPLES]
