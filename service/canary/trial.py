"""The trial of a canary in this process: its share of the requests, and the circuit breaker that can stop it."""

from __future__ import annotations

import hashlib

from recollect.service.canary.breaker import BreakerLimits, CircuitBreaker
from recollect.service.store.activation_record import Canary

# A number of this size is exact as a float.
_HASH_BYTES = 6


class Trial:
    """The trial of one canary.

    Args:
        canary: The canary, its share of the requests, and whether it is a shadow.
        generation: The generation of the activation record that started the trial.
        limits: When the canary is stopped.

    Attributes:
        shadow: Whether the current version answers the requests, and the canary's answers are only compared.
        breaker: Stops the canary.
    """

    def __init__(self, canary: Canary, generation: int, limits: BreakerLimits) -> None:
        self.canary, self.generation = canary, generation
        self.shadow = canary.shadow
        self.breaker = CircuitBreaker(limits, canary.share)

    def includes(self, key: str) -> bool:
        """Whether requests with a key belong to the trial. If the share grows, the same keys still belong to it."""
        return self.breaker.stopped is None and position(self.canary.version, key) < self.canary.share

    def record(self, version: str, seconds: float | None) -> None:
        """Record the latency of an answer; None stands for an error. Other versions than the canary are current."""
        if version == self.canary.version:
            self.breaker.record_canary(seconds)
        else:
            self.breaker.record_current(seconds)


def position(version: str, key: str) -> float:
    """A number in [0, 1) that depends only on the canary's version and the request's key.

    It depends on the version, so that not always the same users try new versions.
    """
    digest = hashlib.blake2b(f"{version}\0{key}".encode(errors="replace"), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest) / (1 << 8 * _HASH_BYTES)
