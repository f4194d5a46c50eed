"""The Redis client of the replicas: short timeouts, and no calls for a second after a failure.

No answer to a query needs Redis. A call that fails or takes too long is given up, and calls of requests are skipped
for a second. So a Redis that is down or slow costs one short wait a second, not one for each request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.errors import RedisError, SettingsError
from service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

# Timeouts of calls of requests, which users wait for, and of calls of background threads.
_REQUEST_SECONDS, _BACKGROUND_SECONDS = 0.05, 2.0
# Time without calls of requests after a failure.
_BACKOFF_SECONDS = 1.0
# Calls of requests that run at once; more calls wait, because the number of connections is limited.
_MAX_CONCURRENT_CALLS = 50


@dataclass
class _Health:
    """Why the last call failed, and until when calls are skipped; requests and background threads have one each."""

    problem: str = ""
    skip_until: float = 0.0


class RedisClient:
    """One Redis and one prefix of keys, for the event loop and for threads.

    Args:
        url: `redis://[user:password@]host[:port][/database]`; never logged, because it can contain a password.
        prefix: First part of every key.
        metrics: Receives whether Redis answers.
    """

    def __init__(self, url: str, prefix: str, metrics: Metrics | None = None) -> None:
        options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "health_check_interval": 15}
        self._prefix, self._metrics = prefix, metrics
        try:
            self._sync_client: Any = redis.Redis.from_url(url, **options, **_timeouts(_BACKGROUND_SECONDS))
            self._async_client: Any = redis.asyncio.Redis.from_url(url, **options, **_timeouts(_REQUEST_SECONDS))
        except ValueError:  # its message can contain a part of the password
            raise SettingsError(
                "--redis-url: expected redis://[user:password@]host[:port][/database], found another form; "
                "write / : @ and # inside a password as %2F %3A %40 and %23"
            ) from None
        self._background, self._requests = _Health(), _Health()
        self._call_slots = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
        self._logged_refusals: set[str] = set()
        self._set_metric(True)

    @property
    def problem(self) -> str:
        """Why Redis is not used now; empty while it answers."""
        return self._requests.problem or self._background.problem

    def key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def require_access(self) -> None:
        """Refuse a user or password that Redis refuses; a Redis that does not answer is accepted.

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
        """Run a command in a background thread. If it is fast enough for requests, their calls resume too.

        Raises:
            RedisError: If Redis does not answer or refuses the command.
        """
        start = time.monotonic()
        try:
            answer = command(self._sync_client)
        except redis.ResponseError as error:
            raise self._record_refusal(error) from error
        except (redis.RedisError, OSError) as error:
            raise self._record_failure(self._background, error) from error
        self._record_success(self._background)
        if time.monotonic() - start < _REQUEST_SECONDS:
            self._record_success(self._requests)
        return answer

    async def execute_async(self, command: Callable[[Any], Any]) -> Any:
        """Run a command for a request; skip it for a second after a failure.

        Raises:
            RedisError: If Redis does not answer in time, refuses the command, or failed less than a second ago.
        """
        if time.monotonic() < self._requests.skip_until:
            raise RedisError(self._requests.problem)
        async with self._call_slots:
            try:
                answer = await command(self._async_client)
            except redis.ResponseError as error:
                raise self._record_refusal(error) from error
            except (redis.RedisError, OSError) as error:
                raise self._record_failure(self._requests, error) from error
        self._record_success(self._requests)
        return answer

    def listen(self, channel: str, on_message: Callable[[], None], stopped: Callable[[], bool]) -> None:
        """Call `on_message` for every message, in the calling thread, until `stopped`; reconnect when needed."""
        while not stopped():
            try:
                with self._sync_client.pubsub(ignore_subscribe_messages=True) as subscription:
                    subscription.subscribe(channel)
                    while not stopped():
                        if subscription.get_message(timeout=_BACKOFF_SECONDS) is not None:
                            on_message()
            except (redis.RedisError, OSError, ValueError):  # ValueError: the client was closed during the call
                time.sleep(_BACKOFF_SECONDS)  # the calls of `execute` log the failure

    async def close(self) -> None:
        self._sync_client.close()
        await self._async_client.aclose()

    def _record_refusal(self, error: redis.ResponseError) -> RedisError:
        """Redis answers, but refuses a command: it is full, or the user lacks a permission.

        The message of Redis can quote the command, so it is not repeated.
        """
        reason = f"Redis refuses a command: {type(error).__name__}"
        if reason not in self._logged_refusals:
            self._logged_refusals.add(reason)
            log.error("redis_refuses", error=reason)
        if self._metrics:
            self._metrics.redis_errors.inc()
        return RedisError(reason)

    def _record_failure(self, health: _Health, error: Exception) -> RedisError:
        had_problem = bool(self.problem)
        timed_out = isinstance(error, TimeoutError | redis.TimeoutError)
        health.problem = "Redis does not answer: " + ("it takes too long" if timed_out else "it cannot be reached")
        health.skip_until = time.monotonic() + _BACKOFF_SECONDS
        if not had_problem:
            log.error("redis_down", error=health.problem)
        self._set_metric(False)
        return RedisError(health.problem)

    def _record_success(self, health: _Health) -> None:
        if health.problem:
            health.problem, health.skip_until = "", 0.0
            if not self.problem:
                log.info("redis_up")
                self._set_metric(True)

    def _set_metric(self, answers: bool) -> None:
        if self._metrics:
            self._metrics.set_redis_up(answers)


def _timeouts(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
