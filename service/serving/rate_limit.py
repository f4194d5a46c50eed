"""Rate limits of API keys, by the generic cell rate algorithm (GCRA).

A limit counts the cost of requests: a normal query costs 1, a long query or one with many keys costs more (see
`request_cost`). A request with a body pays for the bytes before the body is parsed, so that wrong requests cost
something. It pays the rest of its cost when this is known.

Replicas that share a Redis enforce one limit together. Without Redis, or while Redis does not answer, each process
enforces an equal part of the limit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from recollect.core.errors import RateLimitError, RedisError
from recollect.service.redis_client import RedisClient
from recollect.service.telemetry.metrics import Metrics

# GCRA stores one number for each API key: the time at which the next query is due if all queries arrive at the allowed
# rate. A request may be early by at most `burst` queries. A request that costs more than `burst` is admitted if the key
# owes nothing beside the part of the cost that the request has paid; later requests wait for its whole cost. If the
# request is refused, this part stays paid, so the time to wait includes it. All replicas use the clock of Redis. If
# this clock was set back, a stored time can be too far in the future; such a time is discarded.
_TAKE = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local interval, burst, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cost, paid = tonumber(ARGV[4]), tonumber(ARGV[5])
local theoretical = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
if theoretical > now + most * interval + 1e-5 then theoretical = now end
local wait = theoretical + (math.min(cost, burst) - burst) * interval - now
if wait - paid * interval > 1e-5 then return tostring(wait) end
theoretical = math.min(theoretical + (cost - paid) * interval, now + most * interval)
redis.call('SET', KEYS[1], string.format('%.6f', theoretical), 'PX', math.ceil(1e3 * (theoretical - now)) + 1)
return '0'
"""


# Shorter waits are rounding errors of floating-point times. The script above uses the same value.
_ROUNDING_SECONDS = 1e-5
# A burst for which a key never waits.
_ANY_COST = 1 << 40


@dataclass(frozen=True)
class Quota:
    """The name of an API key, which appears in logs and metrics, and its cost per second; 0 sets no limit."""

    name: str
    rate: float


class RateLimits:
    """Counts the cost of the requests of each API key. A batch of normal queries may always arrive at once."""

    def __init__(
        self, max_batch: int, max_cost: int, workers: int, redis: RedisClient | None, metrics: Metrics
    ) -> None:
        self._max_batch, self._max_cost, self._workers, self._redis = max_batch, max_cost, workers, redis
        self._metrics = metrics
        self._theoretical: dict[str, float] = {}

    async def charge(self, quota: Quota | None, cost: int, paid: int = 0) -> None:
        """Count the cost of a request towards the limit of its API key, without the part that is paid already.

        Raises:
            RateLimitError: If the API key exceeds its rate.
        """
        if quota is not None and cost > paid and (wait := await self.wait_seconds(quota, cost, paid)):
            self._metrics.rate_limited.labels(quota.name).inc()
            raise RateLimitError(
                f"key {quota.name}: the limit is {quota.rate:g} normal queries per second, and this request counts as "
                f"{cost:,}; retry in {wait:.1f} s",
                wait,
            )

    async def add(self, quota: Quota | None, cost: int) -> None:
        """Count a cost that is known after the answer. It refuses nothing, but later requests wait for it."""
        if quota is not None and cost:
            await self.wait_seconds(quota, cost, burst=_ANY_COST)

    async def wait_seconds(self, quota: Quota, cost: int, paid: int = 0, burst: int = 0) -> float:
        """Count the cost of a request, without the part that is paid already, and return 0.

        If the request exceeds the rate, count nothing and return the seconds to wait.
        A `burst` is the cost that may arrive at once; 0 means the usual one.
        """
        if not quota.rate:
            return 0.0
        if self._redis:
            usual, name = self._burst(quota.rate), self._redis.key("rate", quota.name)
            arguments = name, 1 / quota.rate, burst or usual, self._max_debt(usual), cost, paid
            try:
                return float(
                    await self._redis.execute_async(lambda client: client.eval(_TAKE, 1, *arguments), "rate_limits")
                )
            except RedisError:
                pass
        rate, now = quota.rate / self._workers, time.monotonic()
        theoretical, usual = max(self._theoretical.get(quota.name, now), now), self._burst(rate)
        burst = burst or usual
        wait = theoretical + (min(cost, burst) - burst) / rate - now
        if wait - paid / rate > _ROUNDING_SECONDS:
            return wait
        self._theoretical[quota.name] = min(theoretical + (cost - paid) / rate, now + self._max_debt(usual) / rate)
        return 0.0

    def _burst(self, rate: float) -> int:
        """The cost that may arrive at once: the cost of one second, or of the largest batch of normal queries."""
        return max(math.ceil(rate), self._max_batch)

    def _max_debt(self, burst: int) -> int:
        """The largest cost that a key can owe."""
        return max(burst, self._max_cost)
