"""Reads the file that lists the API keys."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recollect.core.errors import SettingsError
from recollect.core.settings import require_strong
from recollect.service.serving.rate_limit import Quota

# The beginning of the keys in example files.
_PLACEHOLDER = "REPLACE"
_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")
# The words at the end of a line that let a key change the memory, and the versions that are served.
_WRITE, _OPERATE = "write", "operate"


@dataclass(frozen=True)
class ApiKey(Quota):
    """An API key. Only the SHA-256 of the key's secret stays in memory."""

    digest: bytes
    writes: bool = False
    operates: bool = False


class ApiKeys:
    """All API keys, by the SHA-256 of their secrets.

    A look-up takes the same time for any number of keys. Its time can depend on the digests, but reveals no useful
    part of a secret: a client cannot choose the digest of its guess, so a guess whose digest is partly right brings the
    client no nearer to a secret.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        names: set[str] = set()
        self._by_digest: dict[bytes, ApiKey] = {}
        for key in keys:
            if key.name in names or key.digest in self._by_digest:
                raise SettingsError(f"expected different names and different keys, found {key.name} again")
            names.add(key.name)
            self._by_digest[key.digest] = key

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, secret: str) -> ApiKey | None:
        return self._by_digest.get(_digest(secret))


def read_api_keys(path: Path, rate: float) -> ApiKeys:
    """Read one API key a line: its name and its secret.

    After them, a line can state queries per second (default: `rate`), `write` to allow changes of the memory, and
    `operate` to allow activations.

    Raises:
        SettingsError: If a line has another form, or two keys have one name or secret. The message contains no secret.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--api-keys {path}: expected a file of API keys, found: {error}") from None
    parsed = [
        _parse(f"--api-keys {path}, line {number}", line.split(), rate)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not parsed:
        raise SettingsError(f"--api-keys {path}: expected at least one API key, found none; every request would fail")
    try:
        return ApiKeys(parsed)
    except SettingsError as error:
        raise SettingsError(f"--api-keys {path}: {error}") from None


def _parse(where: str, fields: list[str], rate: float) -> ApiKey:
    words, scopes = len(fields), set[str]()
    while len(fields) > 2 and fields[-1] in (_WRITE, _OPERATE):
        scopes.add(fields.pop())
    if len(fields) not in (2, 3) or not _NAME.fullmatch(fields[0]):
        raise SettingsError(
            f"{where}: expected NAME KEY [QUERIES_PER_SECOND] [{_WRITE}] [{_OPERATE}], found {words} words"
        )
    name, secret, *own_rate = fields
    if secret.startswith(_PLACEHOLDER):
        raise SettingsError(
            f"{where}: expected a key, found the placeholder of an example; create one with `openssl rand -hex 24`"
        )
    require_strong(secret, f"{where}: expected a key of")
    try:
        rate = float(own_rate[0]) if own_rate else rate
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise SettingsError(f"{where}: expected queries per second (0 for no limit), found {own_rate[0][:20]!r}")
    return ApiKey(name, rate, _digest(secret), _WRITE in scopes, _OPERATE in scopes)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
