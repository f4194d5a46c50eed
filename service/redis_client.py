"""The Redis client of the replicas: it has short timeouts, and makes no calls for one second after a failure.

The service can answer every query without Redis. If a call fails or times out, further calls for requests are skipped
for one second. A Redis server that is down or slow therefore costs one short wait a second, not one wait a request.

Whoever may write to Redis can change cached answers. An ACL of Redis decides who may, and TLS protects the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import redis
import redis.asyncio
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from recollect.service.errors import RedisError, SettingsError
from recollect.service.settings import RedisSettings
from recollect.service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

# Timeouts of Redis calls: for a request, whose client is waiting, and in a background thread.
_REQUEST_SECONDS, _BACKGROUND_SECONDS = 0.05, 2.0
# The socket timeout of a request's call. It is long, because `_within` ends the call earlier.
_SOCKET_SECONDS = 5.0
# Time after a failure during which requests make no Redis calls.
_BACKOFF_SECONDS = 1.0
# Time after a refusal during which Redis counts as down. Replicas write their reports every second, so the state of a
# Redis that refuses writes does not change between two refusals.
_REFUSED_SECONDS = 5.0
# Maximum number of Redis calls that requests make at the same time. Further calls wait, because the number of
# connections is limited.
_MAX_CONCURRENT_CALLS = 50


class RedisClient:
    """A Redis server and a prefix of all keys; usable on the event loop and in threads.

    Args:
        url: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS; never logged, because it can
            contain a password.
        prefix: Prefix of every Redis key.
        metrics: Records whether Redis answers.

    Attributes:
        problem: The reason why Redis is not used at the moment; empty while Redis answers.
    """

    def __init__(self, url: str, prefix: str, metrics: Metrics | None = None) -> None:
        # No retries, but a connection to a server that became a replica is closed: the next one finds the new primary.
        options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "retry_on_error": [redis.ReadOnlyError]}
        options["health_check_interval"] = 15
        self._prefix, self._metrics = prefix, metrics
        try:
            self._sync_client: Any = redis.Redis.from_url(url, **options, **_timeouts(_BACKGROUND_SECONDS))
            self._async_client: Any = redis.asyncio.Redis.from_url(url, **options, **_timeouts(_SOCKET_SECONDS))
        except ValueError:  # the error's message can contain a part of the password
            raise SettingsError(
                "--redis-url: expected redis://[user:password@]host[:port][/database], or rediss:// for TLS, found "
                "another form; write / : @ and # inside a password as %2F %3A %40 and %23"
            ) from None
        self.problem = ""
        self._problem_until = self._skip_until = 0.0
        self._call_slots = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
        self._set_metric(True)

    @classmethod
    def of(cls, settings: RedisSettings, metrics: Metrics | None = None) -> RedisClient | None:
        """The client that the settings describe; None if the replicas share no Redis server."""
        if settings.redis_url is None:
            return None
        return cls(settings.redis_url.get_secret_value(), settings.redis_prefix, metrics)

    def key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def require_access(self) -> None:
        """Fail if Redis refuses the user or the password. A Redis server that does not answer is no error.

        Raises:
            SettingsError: If Redis answers and refuses the user or the password.
        """
        try:
            self._sync_client.ping()
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError):
            raise SettingsError("--redis-url: Redis does not accept its user and password; correct them") from None
        except (redis.RedisError, OSError):
            return

    def execute(self, command: Callable[[Any], Any]) -> Any:
        """Run a Redis command in a background thread.

        Raises:
            RedisError: If Redis does not answer or refuses the command.
        """
        with self._recorded():
            return command(self._sync_client)

    async def execute_async(self, command: Callable[[Any], Any]) -> Any:
        """Run a Redis command for a request; for one second after a failure, skip the command.

        Raises:
            RedisError: If Redis does not answer in time, refuses the command, or failed less than a second ago.
        """
        async with self._call_slots:
            if time.monotonic() < self._skip_until:
                raise RedisError(self.problem)
            with self._recorded():
                return await _within(_REQUEST_SECONDS, command(self._async_client))

    async def close(self) -> None:
        self._sync_client.close()
        await self._async_client.aclose()

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Record whether a call fails. Only a call that is as fast as a request needs shows that Redis answers."""
        start = time.monotonic()
        try:
            yield
        except redis.ResponseError as error:  # the message of Redis can quote the command, so it is not repeated
            raise self._failed(f"Redis refuses a command: {type(error).__name__}", _REFUSED_SECONDS) from error
        except (redis.RedisError, OSError) as error:
            self._skip_until = time.monotonic() + _BACKOFF_SECONDS
            raise self._failed(f"Redis does not answer: {_reason(error)}", 0.0) from error
        if time.monotonic() - start < _REQUEST_SECONDS:
            self._skip_until = 0.0
            if self.problem and self._problem_until < time.monotonic():
                self.problem = ""
                log.info("redis_up")
                self._set_metric(True)

    def _failed(self, problem: str, seconds: float) -> RedisError:
        """Record a problem, which stays for so many seconds."""
        if not self.problem:
            log.error("redis_down", error=problem)
        self.problem, self._problem_until = problem, max(self._problem_until, time.monotonic() + seconds)
        self._set_metric(False)
        return RedisError(problem)

    def _set_metric(self, answers: bool) -> None:
        if self._metrics:
            self._metrics.set_redis_up(answers)


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    """Wait for an answer of Redis for so many seconds.

    The wait has a second, short part: if the event loop was busy, the answer may have arrived in the meantime, but was
    not read yet.

    Raises:
        TimeoutError: If Redis does not answer in time.
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
    if isinstance(error, TimeoutError | redis.TimeoutError):
        return "it takes too long"
    if isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError):
        return "its TLS certificate is not trusted; name the file of its issuer with ?ssl_ca_certs=FILE in --redis-url"
    return "it cannot be reached"


def _timeouts(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
