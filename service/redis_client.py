"""The Redis client of the replicas: it has short timeouts, and makes no calls for one second after a failure.

The service can answer every query without Redis. If a call fails or times out, further calls for requests are skipped
for one second. A Redis server that is down or slow therefore costs one short wait a second, not one wait a request.

Whoever may write to Redis can change cached answers. An ACL of Redis decides who may, and TLS protects the connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
# A request waits for Redis in so many parts, and at most for this time if the event loop is busy; see `_within`.
_WAIT_PARTS, _LONGEST_REQUEST_SECONDS = 10, 5.0
# The weight of a part that ends late. With 0, every request would wait for the longest time if Redis is down while the
# event loop is busy.
_LATE_PART = 0.25
# Time after a failure during which requests make no Redis calls.
_BACKOFF_SECONDS = 1.0
# Time after a refusal during which Redis counts as down. Replicas write their reports every second, so the state of a
# Redis that refuses writes does not change between two refusals.
_REFUSED_SECONDS = 5.0
# Maximum number of Redis calls that requests make at the same time. Further calls wait, because the number of
# connections is limited.
_MAX_CONCURRENT_CALLS = 50


@dataclass
class _Health:
    """Why a Redis call failed.

    Requests and background threads each have their own state, and so have refused commands: Redis can answer reads
    while it refuses writes.

    Attributes:
        problem: The reason; empty if the last call succeeded.
        until: Until then, requests make no calls, or for refused commands, the problem stays.
    """

    problem: str = ""
    until: float = 0.0


class RedisClient:
    """A Redis server and a prefix of all keys; usable on the event loop and in threads.

    Args:
        url: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS; never logged, because it can
            contain a password.
        prefix: Prefix of every Redis key.
        metrics: Records whether Redis answers.
    """

    def __init__(self, url: str, prefix: str, metrics: Metrics | None = None) -> None:
        # No retries, but a connection to a server that became a replica is closed: the next one finds the new primary.
        options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "retry_on_error": [redis.ReadOnlyError]}
        options["health_check_interval"] = 15
        self._prefix, self._metrics = prefix, metrics
        try:
            self._sync_client: Any = redis.Redis.from_url(url, **options, **_timeouts(_BACKGROUND_SECONDS))
            self._async_client: Any = redis.asyncio.Redis.from_url(
                url, **options, **_timeouts(_LONGEST_REQUEST_SECONDS)
            )
        except ValueError:  # the error's message can contain a part of the password
            raise SettingsError(
                "--redis-url: expected redis://[user:password@]host[:port][/database], or rediss:// for TLS, found "
                "another form; write / : @ and # inside a password as %2F %3A %40 and %23"
            ) from None
        self._background, self._requests, self._refusals = _Health(), _Health(), _Health()
        self._call_slots = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
        self._set_metric(True)

    @classmethod
    def of(cls, settings: RedisSettings, metrics: Metrics | None = None) -> RedisClient | None:
        """The client that the settings describe; None if the replicas share no Redis server."""
        if settings.redis_url is None:
            return None
        return cls(settings.redis_url.get_secret_value(), settings.redis_prefix, metrics)

    @property
    def problem(self) -> str:
        """The reason why Redis is not used at the moment; empty while Redis answers."""
        return self._requests.problem or self._background.problem or self._refusals.problem

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

        If the command is as fast as a request needs, requests use Redis again too.

        Raises:
            RedisError: If Redis does not answer or refuses the command.
        """
        start = time.monotonic()
        try:
            answer = command(self._sync_client)
        except redis.ResponseError as error:
            raise self._record_failure(self._refusals, error) from error
        except (redis.RedisError, OSError) as error:
            raise self._record_failure(self._background, error) from error
        self._record_success(self._background)
        if time.monotonic() - start < _REQUEST_SECONDS:
            self._record_success(self._requests)
        return answer

    async def execute_async(self, command: Callable[[Any], Any]) -> Any:
        """Run a Redis command for a request; for one second after a failure, skip the command.

        Raises:
            RedisError: If Redis does not answer in time, refuses the command, or failed less than a second ago.
        """
        self._require_no_recent_failure()
        async with self._call_slots:
            self._require_no_recent_failure()  # again, because a call may have failed during the wait for a slot
            try:
                answer = await _within(_REQUEST_SECONDS, command(self._async_client))
            except redis.ResponseError as error:
                raise self._record_failure(self._refusals, error) from error
            except (redis.RedisError, OSError) as error:
                raise self._record_failure(self._requests, error) from error
        self._record_success(self._requests)
        return answer

    async def close(self) -> None:
        self._sync_client.close()
        await self._async_client.aclose()

    def _require_no_recent_failure(self) -> None:
        """Skip a Redis call of a request for one second after a failure.

        Raises:
            RedisError: If a call failed less than a second ago.
        """
        if time.monotonic() < self._requests.until:
            raise RedisError(self._requests.problem)

    def _record_failure(self, health: _Health, error: Exception) -> RedisError:
        had_problem = bool(self.problem)
        if health is self._refusals:  # the message of Redis can quote the command, so it is not repeated
            health.problem = f"Redis refuses a command: {type(error).__name__}"
            health.until = time.monotonic() + _REFUSED_SECONDS
        else:
            health.problem = f"Redis does not answer: {_reason(error)}"
            health.until = time.monotonic() + _BACKOFF_SECONDS
        if not had_problem:
            log.error("redis_down", error=health.problem)
        self._set_metric(False)
        return RedisError(health.problem)

    def _record_success(self, health: _Health) -> None:
        had_problem = bool(self.problem)
        health.problem, health.until = "", 0.0
        if self._refusals.until < time.monotonic():
            self._refusals.problem = ""
        if had_problem and not self.problem:
            log.info("redis_up")
            self._set_metric(True)

    def _set_metric(self, answers: bool) -> None:
        if self._metrics:
            self._metrics.set_redis_up(answers)


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    """Wait for an answer of Redis for so many seconds, or longer while the event loop is busy.

    The wait consists of short parts. A part that ends late counts as a quarter: the loop was busy, and has perhaps not
    yet read the answer that arrived in the meantime. One timeout for the whole wait would declare a healthy Redis down.

    Raises:
        TimeoutError: If Redis does not answer in time.
    """
    call, loop = asyncio.ensure_future(answer), asyncio.get_running_loop()
    part, latest, waited = seconds / _WAIT_PARTS, loop.time() + _LONGEST_REQUEST_SECONDS, 0.0
    try:
        while waited < _WAIT_PARTS and (start := loop.time()) < latest:
            await asyncio.wait([call], timeout=part)
            if call.done():
                return call.result()
            waited += 1 if loop.time() - start < 1.5 * part else _LATE_PART
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
