"""Announcements in Redis: an activation announces its generation, so that replicas read their store at once.

An announcement never changes the version: a replica serves only the version in the activation record of its own store.
If Redis announces a later generation than the store has, the store of the replica is probably an old copy. The replica
then logs an error and exports both numbers as metrics.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis
import structlog

from recollect.service.errors import RedisError
from recollect.service.redis_client import RedisClient
from recollect.service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

# Seconds for which Redis and the store may have different generations before the difference is logged.
_DIFFER_SECONDS = 10.0
_MAX_DIGITS = 16


class Announcements:
    """The generation that Redis announces to the replicas of a store.

    Attributes:
        channel: The Redis channel on which new generations are published.
    """

    def __init__(self, redis_client: RedisClient) -> None:
        self._redis = redis_client
        self.channel = self._key = redis_client.key("generation")
        self._differs_since: float | None = None
        self._logged: tuple[int, int] | None = None

    def announce(self, generation: int) -> None:
        """Announce a generation to all replicas.

        Raises:
            RedisError: If Redis does not answer.
        """
        self._redis.execute(
            lambda client: client.pipeline().set(self._key, generation).publish(self.channel, generation).execute()
        )

    def announced(self) -> int | None:
        """The announced generation; None if Redis has none or has other content.

        Raises:
            RedisError: If Redis does not answer.
        """

        def read(client: Any) -> bytes:
            try:
                return bytes(client.getrange(self._key, 0, _MAX_DIGITS))
            except redis.ResponseError:  # the value is not a string
                return b""

        content = self._redis.execute(read)
        return int(content) if content.isdigit() and len(content) <= _MAX_DIGITS else None

    def compare(self, generation: int, metrics: Metrics) -> None:
        """Compare the announced generation with the generation of this replica's store.

        If Redis announces an earlier generation or none, because it was unreachable during the activation or lost its
        data, announce the store's generation again.

        Raises:
            RedisError: If Redis does not answer.
        """
        announced = self.announced()
        if announced is None or announced < generation:
            with contextlib.suppress(RedisError):  # the next comparison tries again
                self.announce(generation)
            announced = generation
        metrics.generation.labels("redis").set(announced)
        if announced == generation:
            self._differs_since = None
            return
        now = time.monotonic()
        self._differs_since = self._differs_since or now
        if now - self._differs_since >= _DIFFER_SECONDS and self._logged != (announced, generation):
            self._logged = (announced, generation)
            log.error(
                "generations_differ",
                redis=announced,
                store=generation,
                error="Redis announces a later generation than this replica's store has; "
                "copy ACTIVATION and the bundle to this store, or run `recollect activate`",
            )
