"""Reads the file that lists the API keys."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service.errors import SettingsError
from service.serving.rate_limit import Quota
from service.settings import require_strong

_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")


@dataclass(frozen=True)
class ApiKey(Quota):
    """An API key. Only the SHA-256 of the key's secret stays in memory."""

    digest: bytes


def read_api_keys(path: Path, rate: float) -> list[ApiKey]:
    """Read one API key a line: its name, its secret, and optionally its queries per second (default: `rate`).

    Raises:
        SettingsError: If a line has another form. The error message does not repeat the secret.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--api-keys {path}: expected a file of API keys, found: {error}") from None
    keys = [_parse(f"--api-keys {path}, line {number}", line.split(), rate) for number, line in _numbered(lines)]
    if not keys:
        raise SettingsError(f"--api-keys {path}: expected at least one API key, found none; every request would fail")
    for row, key in enumerate(keys):
        if any(key.name == other.name or key.digest == other.digest for other in keys[:row]):
            raise SettingsError(
                f"--api-keys {path}: expected different names and different keys, found {key.name} again"
            )
    return keys


def _numbered(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines of a text with their line numbers, without empty lines and comments."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _parse(where: str, fields: list[str], rate: float) -> ApiKey:
    if len(fields) not in (2, 3) or not _NAME.fullmatch(fields[0]):
        raise SettingsError(f"{where}: expected NAME KEY [QUERIES_PER_SECOND], found {len(fields)} words")
    name, secret, *own_rate = fields
    require_strong(secret, f"{where}: expected a key of")
    try:
        rate = float(own_rate[0]) if own_rate else rate
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise SettingsError(f"{where}: expected queries per second (0 for no limit), found {own_rate[0][:20]!r}")
    return ApiKey(name, rate, hashlib.sha256(secret.encode()).digest())
