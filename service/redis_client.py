"""Redis, while it answers: what replicas share when they share more than a folder.

Nothing here is needed to answer a query. A call that fails or takes too long is given up, and for a while no other is
tried: a Redis that is down or slow costs one short wait a second, not one a request.
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
from service.telemetry.metrics import Telemetry

log = structlog.get_logger(__name__)

# How long a request may wait for Redis, and what follows the current version, which is in no such hurry.
_REQUEST_SECONDS, _FOLLOWER_SECONDS = 0.05, 2.0
# How long Redis is left alone after it failed.
_REST_SECONDS = 1.0
# Requests that ask at once; the others wait their turn, as there are only so many connections.
_MOST_AT_ONCE = 50


@dataclass
class _Health:
    """How Redis is found by those who can wait so long; requests and the follower have each their own patience."""

    problem: str = ""
    rests_until: float = 0.0


class RedisLink:
    """One Redis under one prefix, for the event loop and for threads."""

    def __init__(self, url: str, prefix: str, telemetry: Telemetry | None = None) -> None:
        options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "health_check_interval": 15}
        self._prefix, self._telemetry = prefix, telemetry
        try:
            self._threads: Any = redis.Redis.from_url(url, **options, **_timeouts(_FOLLOWER_SECONDS))
            self._loop: Any = redis.asyncio.Redis.from_url(url, **options, **_timeouts(_REQUEST_SECONDS))
        except ValueError:  # whose words may hold a part of the password
            raise SettingsError(
                "--redis-url: expected redis://[user:password@]host[:port][/database], found another form; "
                "write / : @ and # inside a password as %2F %3A %40 and %23"
            ) from None
        self._follower, self._requests = _Health(), _Health()
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        self._told: set[str] = set()
        self._tell(True)

    @property
    def problem(self) -> str:
        """Why Redis is not relied on at present; empty while it answers."""
        return self._requests.problem or self._follower.problem

    def key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def require_access(self) -> None:
        """Refuse a password that Redis refuses; that it does not answer at all is borne.

        Raises:
            SettingsError: If Redis answers, and does not let us in.
        """
        try:
            self._threads.ping()
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError):
            raise SettingsError("--redis-url: Redis does not accept its user and password; correct them") from None
        except (redis.RedisError, OSError):
            return

    def ask(self, do: Callable[[Any], Any]) -> Any:
        """Ask from a thread, in its own time; an answer that is soon enough for requests is good news for them too.

        Raises:
            RedisError: If Redis does not answer.
        """
        start = time.monotonic()
        try:
            answer = do(self._threads)
        except redis.ResponseError as error:
            raise self._refused(error) from error
        except (redis.RedisError, OSError) as error:
            raise self._failed(self._follower, error) from error
        self._answered(self._follower)
        if time.monotonic() - start < _REQUEST_SECONDS:
            self._answered(self._requests)
        return answer

    async def ask_soon(self, do: Callable[[Any], Any]) -> Any:
        """Ask for a request that waits; while Redis is resting, not at all.

        Raises:
            RedisError: If Redis does not answer at once.
        """
        if time.monotonic() < self._requests.rests_until:
            raise RedisError(self._requests.problem)
        async with self._turns:
            try:
                answer = await do(self._loop)
            except redis.ResponseError as error:
                raise self._refused(error) from error
            except (redis.RedisError, OSError) as error:
                raise self._failed(self._requests, error) from error
        self._answered(self._requests)
        return answer

    def listen(self, channel: str, heard: Callable[[], None], until: Callable[[], bool]) -> None:
        """Call `heard` at every message, in the calling thread, until `until`; a lost connection is found again."""
        while not until():
            try:
                with self._threads.pubsub(ignore_subscribe_messages=True) as subscription:
                    subscription.subscribe(channel)
                    while not until():
                        if subscription.get_message(timeout=_REST_SECONDS) is not None:
                            heard()
            except (redis.RedisError, OSError, ValueError):  # ValueError: closed while it was reading
                time.sleep(_REST_SECONDS)  # what asks for the version by itself tells of it

    async def close(self) -> None:
        self._threads.close()
        await self._loop.aclose()

    def _refused(self, error: redis.ResponseError) -> RedisError:
        """Redis answers, but will not do it: it is full, or we may not. Its own words may quote what we sent."""
        reason = f"Redis refuses a command: {type(error).__name__}"
        if reason not in self._told:
            self._told.add(reason)
            log.error("redis_refuses", error=reason)
        if self._telemetry:
            self._telemetry.redis_errors.inc()
        return RedisError(reason)

    def _failed(self, health: _Health, error: Exception) -> RedisError:
        was = self.problem
        late = isinstance(error, TimeoutError | redis.TimeoutError)
        health.problem = "Redis does not answer: " + ("it takes too long" if late else "it cannot be reached")
        health.rests_until = time.monotonic() + _REST_SECONDS
        if not was:
            log.error("redis_down", error=health.problem)
        self._tell(False)
        return RedisError(health.problem)

    def _answered(self, health: _Health) -> None:
        if health.problem:
            health.problem, health.rests_until = "", 0.0
            if not self.problem:
                log.info("redis_up")
                self._tell(True)

    def _tell(self, up: bool) -> None:
        if self._telemetry:
            self._telemetry.redis(up)


def _timeouts(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
