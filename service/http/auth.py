"""Who may ask, and how much: API keys, and a rate for each of them."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import RedisError, SettingsError
from service.http.problems import problem_response
from service.redis_client import RedisClient
from service.settings import require_strong

_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")
# Paths that need a key, where there are keys: what answers from the memory, but not what tells of the service.
_GUARDED = ("/predict", "/labels/", "/version")


@dataclass(frozen=True)
class ApiKey:
    """A key's name, which may be told, the hash of its secret, which is all that is kept, and its queries a second."""

    name: str
    digest: bytes
    rate: float


def read_api_keys(path: Path, rate: float) -> list[ApiKey]:
    """Read keys, a line each: a name, the key itself, and its rate where it is not `rate`.

    Raises:
        SettingsError: If a line is anything else; the key itself is not repeated.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--api-keys {path}: expected a file of keys, found: {error}") from None
    keys = [_key(f"--api-keys {path}, line {number}", line.split(), rate) for number, line in _content(lines)]
    if not keys:
        raise SettingsError(f"--api-keys {path}: expected a line for each key, found none: nobody could ask")
    for nth, key in enumerate(keys):
        if any(key.name == other.name or key.digest == other.digest for other in keys[:nth]):
            raise SettingsError(f"--api-keys {path}: expected each name and each key once, found {key.name} again")
    return keys


def _content(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _key(where: str, fields: list[str], rate: float) -> ApiKey:
    if len(fields) not in (2, 3) or not _NAME.fullmatch(fields[0]):
        raise SettingsError(f"{where}: expected NAME KEY [QUERIES_PER_SECOND], found {len(fields)} words")
    name, secret, *own_rate = fields
    require_strong(secret, f"{where}: expected a key of")
    try:
        chosen = float(own_rate[0]) if own_rate else rate
    except ValueError:
        chosen = math.nan
    if not 0 <= chosen < math.inf:
        raise SettingsError(f"{where}: expected queries a second, 0 for no limit, found {own_rate[0][:20]!r}")
    return ApiKey(name, _digest(secret), chosen)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def bearer_of(headers: Headers) -> str | None:
    """What follows `Authorization: Bearer`; None where that is not said."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else None


class Access:
    """Answers 401 to who has no key, before the body is read; names the key of who has in `scope["api_key"]`."""

    def __init__(self, app: ASGIApp, keys: list[ApiKey]) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_GUARDED) and scope["method"] != "OPTIONS":
            scope["api_key"] = self._identify(Headers(scope=scope))
            if scope["api_key"] is None:
                detail = (
                    "expected an API key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`, found none that is known"
                )
                refusal = problem_response(401, detail, headers={"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _identify(self, headers: Headers) -> ApiKey | None:
        """The key that a request has; every known one is compared, so that the time tells nothing."""
        bearer = bearer_of(headers)
        digest = _digest(headers.get("x-api-key", "") if bearer is None else bearer)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


# The generic cell rate algorithm: `theoretical` is when the next query would be due if all came at their rate; who asks
# is early by no more than `burst` queries' worth. Redis's own clock counts, the same for all replicas; where it was set
# back, what no key can owe is forgotten.
_TAKE = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local interval, queries, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local theoretical = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
if theoretical > now + burst * interval then theoretical = now end
theoretical = theoretical + queries * interval
local wait = theoretical - burst * interval - now
if wait > 0 then return tostring(wait) end
redis.call('SET', KEYS[1], string.format('%.6f', theoretical), 'PX', math.ceil(1e3 * (theoretical - now)) + 1)
return '0'
"""


class RateLimits:
    """How soon a key may ask again: over all replicas where they share a Redis that answers, else in this process.

    Args:
        most_at_once: Queries of the largest batch.
        workers: Processes that share a replica's part of the rate, where each counts for itself.
        link: The Redis, if there is one.
    """

    def __init__(self, most_at_once: int, workers: int, link: RedisClient | None) -> None:
        self._most_at_once, self._workers, self._link = most_at_once, workers, link
        self._theoretical: dict[str, float] = {}

    async def wait_seconds(self, key: ApiKey, queries: int) -> float:
        """0 if so many queries may be asked now, and are counted; else how long until they may."""
        if not key.rate:
            return 0.0
        if self._link:
            name, arguments = self._link.key("rate", key.name), (1 / key.rate, queries, self._burst(key.rate))
            try:
                return float(await self._link.execute_async(lambda client: client.eval(_TAKE, 1, name, *arguments)))
            except RedisError:
                pass
        rate, now = key.rate / self._workers, time.monotonic()
        theoretical = max(self._theoretical.get(key.name, now), now) + queries / rate
        wait = theoretical - self._burst(rate) / rate - now
        if wait <= 0:
            self._theoretical[key.name] = theoretical
        return max(0.0, wait)

    def _burst(self, rate: float) -> int:
        """Queries that may come at once: a second's worth, and the largest batch."""
        return max(math.ceil(rate), self._most_at_once)
