"""The Redis client of the replicas: it has short timeouts, and makes no calls for one second after a failure.

The service can answer every query without Redis. If a call for a request fails or times out, further calls of its kind
are skipped for one second. A Redis server that is down or slow therefore costs one short wait a second for each kind,
not one wait a request.

Redis can answer one kind of calls and refuse another one: a write of many large answers takes too long, while it counts
for a rate limit. So each kind has its own state and its own limit of calls, which only calls of this kind change. After
a failure for a request, a harmless call of its kind is repeated every second, so that the state is also right without
further requests.

Whoever may write to Redis can change cached answers. An ACL of Redis decides who may, and TLS protects the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, get_args

import redis
import redis.asyncio
import redis.asyncio.retry
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from recollect.core.errors import RedisError, SettingsError
from recollect.core.settings import RedisSettings
from recollect.service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

# Timeout of a Redis call in a background thread, and of a client that answers no requests.
_BACKGROUND_SECONDS = 2.0
# The socket timeout of a request's call. It is long, because `_within` ends the call earlier.
_SOCKET_SECONDS = 10.0
# Time after a failure during which requests make no Redis calls, and until the call of the failed kind is repeated.
_BACKOFF_SECONDS = 1.0
# Maximum number of Redis calls of a kind that requests make at the same time. Further calls wait, because the number of
# connections is limited.
_MAX_CONCURRENT_CALLS = 50

# The kinds of calls that a replica makes again and again.
Use = Literal["reports", "rate_limits", "cache_reads", "cache_writes"]
USES: tuple[Use, ...] = get_args(Use)

# Harmless calls for requests: each needs what the calls of its use need, and changes only the key that it gets.
_CHECKS: dict[Use, Callable[[Any, str], Awaitable[Any]]] = {
    "rate_limits": lambda client, key: client.eval("return redis.call('SET', KEYS[1], '', 'EX', 1)", 1, key),
    "cache_reads": lambda client, key: client.mget([key]),
    "cache_writes": lambda client, key: client.set(key, "", ex=1),
}


class RedisClient:
    """A Redis server and a prefix of all keys; usable on the event loop and in threads.

    The URL is `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS; it is never logged, because it
    can contain a password.

    Args:
        request_seconds: Time limit of a call for a request, whose client is waiting.
    """

    def __init__(
        self, url: str, prefix: str, metrics: Metrics | None = None, request_seconds: float = _BACKGROUND_SECONDS
    ) -> None:
        # No retries, but a connection to a server that became a replica is closed: the next one finds the new primary.
        options: dict[str, Any] = {"retry_on_error": [redis.ReadOnlyError], "health_check_interval": 15}
        self._prefix, self._metrics, self._request_seconds = prefix, metrics, request_seconds
        try:
            self._sync_client: Any = redis.Redis.from_url(
                url, retry=Retry(NoBackoff(), 0), **options, **_timeouts(_BACKGROUND_SECONDS)
            )
            self._async_client: Any = redis.asyncio.Redis.from_url(
                url, retry=redis.asyncio.retry.Retry(NoBackoff(), 0), **options, **_timeouts(_SOCKET_SECONDS)
            )
        except ValueError:  # the error's message can contain a part of the password
            raise SettingsError(
                "--redis-url: expected redis://[user:password@]host[:port][/database], or rediss:// for TLS, found "
                "another form; write / : @ and # inside a password as %2F %3A %40 and %23"
            ) from None
        self._problems: dict[Use, str] = {}
        # Until when calls of a use are skipped, and why.
        self._skipped: dict[Use, tuple[float, str]] = {}
        self._call_slots = {use: asyncio.Semaphore(_MAX_CONCURRENT_CALLS) for use in USES}
        self._checks: dict[Use, asyncio.Task[None]] = {}
        for use in USES:
            self._set_metric(use, True)

    @classmethod
    def of(
        cls, settings: RedisSettings, metrics: Metrics | None = None, request_seconds: float = _BACKGROUND_SECONDS
    ) -> RedisClient | None:
        """The client that the settings describe; None if the replicas share no Redis server."""
        if settings.redis_url is None:
            return None
        return cls(settings.redis_url.get_secret_value(), settings.redis_prefix, metrics, request_seconds)

    def key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def require_access(self) -> None:
        """Raise `SettingsError` if Redis refuses the user or the password. A Redis without an answer is no error."""
        try:
            self._sync_client.ping()
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError):
            raise SettingsError("--redis-url: Redis does not accept its user and password; correct them") from None
        except (redis.RedisError, OSError):
            return

    @property
    def problems(self) -> list[str]:
        """The uses whose last call failed, each with the reason."""
        return [f"{use}: {problem}" for use, problem in sorted(self._problems.items())]

    def execute(self, command: Callable[[Any], Any], use: Use | None = None) -> Any:
        """Run a Redis command in a background thread. A call that a person waits for has no `use`.

        Raises:
            RedisError: If Redis does not answer or refuses the command.
        """
        with self._recorded(use):
            return command(self._sync_client)

    async def execute_async(self, command: Callable[[Any], Any], use: Use) -> Any:
        """Run a Redis command for a request; for one second after a failure of its use, skip the command.

        Raises:
            RedisError: If Redis does not answer in time, refuses the command, or failed less than a second ago.
        """
        async with self._call_slots[use]:
            skip_until, reason = self._skipped.get(use, (0.0, ""))
            if time.monotonic() < skip_until:
                raise RedisError(reason)
            try:
                with self._recorded(use):
                    return await _within(self._request_seconds, command(self._async_client))
            except RedisError as error:
                if isinstance(error.__cause__, redis.ReadOnlyError):  # the other connections lead to this server, too
                    await self._async_client.connection_pool.disconnect(inuse_connections=False)
                elif not isinstance(error.__cause__, redis.ResponseError):
                    self._skipped[use] = time.monotonic() + _BACKOFF_SECONDS, str(error)
                if use not in self._checks:
                    self._checks[use] = asyncio.create_task(self._check(use), context=contextvars.Context())
                raise

    async def _check(self, use: Use) -> None:
        """Repeat a harmless call of a use until it succeeds, or until a request has succeeded."""
        while use in self._problems:
            await asyncio.sleep(_BACKOFF_SECONDS)
            with contextlib.suppress(RedisError):
                await self.execute_async(lambda client: _CHECKS[use](client, self.key("check")), use)
        del self._checks[use]

    async def close(self) -> None:
        for check in self._checks.values():
            check.cancel()
        self._sync_client.close()
        await self._async_client.aclose()

    @contextlib.contextmanager
    def _recorded(self, use: Use | None) -> Iterator[None]:
        try:
            yield
        except redis.ResponseError as error:  # the message of Redis can quote the command, so it is not repeated
            raise self._failed(use, f"Redis refuses a command: {type(error).__name__}") from error
        except (redis.RedisError, OSError) as error:
            raise self._failed(use, f"Redis does not answer: {_reason(error)}") from error
        if use is not None and self._problems.pop(use, None) is not None:
            self._set_metric(use, True)
            if not self._problems:
                log.info("redis_up")

    def _failed(self, use: Use | None, problem: str) -> RedisError:
        """Record the problem of a use, which stays until a call of this use succeeds."""
        if use is not None:
            if not self._problems:
                log.error("redis_down", error=problem, use=use)
            self._problems[use] = problem
            self._set_metric(use, False)
        return RedisError(problem)

    def _set_metric(self, use: Use, answers: bool) -> None:
        if self._metrics:
            self._metrics.set_redis_up(use, answers)


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    """Wait for an answer of Redis for so many seconds.

    The wait has a second, short part: if the event loop was busy, the answer may have arrived in the meantime, but was
    not read yet.
    """
    call = asyncio.ensure_future(answer)
    try:
        for part in (seconds, seconds / 10):
            await asyncio.wait([call], timeout=part)
            if call.done():
                return call.result()
        raise TimeoutError
    finally:
        if not call.done():
            call.cancel()
            call.add_done_callback(lambda cancelled: cancelled.cancelled() or cancelled.exception())


def _reason(error: Exception) -> str:
    """The reason why Redis does not answer, and the next step. It contains no part of the URL."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, TimeoutError | redis.TimeoutError):
        return "it takes too long"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _CERTIFICATE_PROBLEMS.get(cause.verify_code, _UNTRUSTED)
    ended = isinstance(cause, ssl.SSLEOFError | ConnectionResetError)
    if ended or "CERTIFICATE_REQUIRED" in str(getattr(cause, "reason", "")):
        return "it ends the connection; if it expects a TLS certificate, add ?ssl_certfile=FILE&ssl_keyfile=FILE"
    if isinstance(cause, ssl.SSLError):
        return f"TLS fails: {str(cause.reason).lower().replace('_', ' ')}"
    if isinstance(cause, FileNotFoundError | PermissionError):
        return "a file that --redis-url names cannot be read"
    return "it cannot be reached"


# The reasons by the code of OpenSSL, X509_V_ERR_...
_UNTRUSTED = "its TLS certificate is not trusted; name the file of its issuer with ?ssl_ca_certs=FILE in --redis-url"
_OTHER_NAME = "its TLS certificate is for another name; use a name of the certificate as the host in --redis-url"
_CERTIFICATE_PROBLEMS = {
    9: "its TLS certificate is not valid yet; compare the clocks of both machines",
    10: "its TLS certificate has expired; renew it",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}


def _timeouts(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
