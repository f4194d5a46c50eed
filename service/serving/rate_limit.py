"""Rate limits of API keys, by the generic cell rate algorithm (GCRA).

Replicas that share a Redis enforce one limit together. Without Redis, or while Redis does not answer, each process
enforces an equal part of the limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from service.errors import RedisError
from service.redis_client import RedisClient

# GCRA stores one number for each API key: the time at which the next query is due if all queries arrive at the allowed
# rate. A request may be early by at most `burst` queries. All replicas use the clock of Redis. If this clock was set
# back, a stored time can be too far in the future; such a time is discarded.
_TAKE = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local interval, queries, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local theoretical = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
if theoretical > now + burst * interval then theoretical = now end
theoretical = theoretical + queries * interval
local wait = theoretical - burst * interval - now
if wait > 1e-5 then return tostring(wait) end
redis.call('SET', KEYS[1], string.format('%.6f', theoretical), 'PX', math.ceil(1e3 * (theoretical - now)) + 1)
return '0'
"""


# Shorter waits are rounding errors of floating-point times. The script above uses the same value.
_ROUNDING_SECONDS = 1e-5


@dataclass(frozen=True)
class Quota:
    """The name of an API key, which appears in logs and metrics, and its queries per second; 0 sets no limit."""

    name: str
    rate: float


class RateLimits:
    """Counts the queries of each API key.

    Args:
        max_batch: Maximum number of queries in a batch; so many queries may always arrive at once.
        workers: Number of worker processes of this replica. Without Redis, each process enforces an equal part of the
            rate.
        redis: The Redis server that the replicas share, or None.
    """

    def __init__(self, max_batch: int, workers: int, redis: RedisClient | None) -> None:
        self._max_batch, self._workers, self._redis = max_batch, workers, redis
        self._theoretical: dict[str, float] = {}

    async def wait_seconds(self, quota: Quota, queries: int) -> float:
        """Count queries and return 0.

        If the queries exceed the rate, count none of them and return the seconds to wait.
        """
        if not quota.rate:
            return 0.0
        if self._redis:
            name, arguments = self._redis.key("rate", quota.name), (1 / quota.rate, queries, self._burst(quota.rate))
            try:
                return float(await self._redis.execute_async(lambda client: client.eval(_TAKE, 1, name, *arguments)))
            except RedisError:
                pass
        rate, now = quota.rate / self._workers, time.monotonic()
        theoretical = max(self._theoretical.get(quota.name, now), now) + queries / rate
        wait = theoretical - self._burst(rate) / rate - now
        if wait > _ROUNDING_SECONDS:
            return wait
        self._theoretical[quota.name] = theoretical
        return 0.0

    def _burst(self, rate: float) -> int:
        """The number of queries that may arrive at once: the queries of one second, or the largest batch."""
        return max(math.ceil(rate), self._max_batch)
