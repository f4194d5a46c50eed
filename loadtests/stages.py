"""Stages of a load test. A stage has a request rate, a fault of the deployment, and errors that are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Request rates as shares of saturation.
_NORMAL, _OVERLOAD = 0.4, 3.0
# The stage `overload` uses this many times the usual connections, so that it fills the queues of the replicas.
_OVERLOAD_CONNECTIONS = 16


@dataclass(frozen=True)
class Stage:
    """One stage of a load test.

    Attributes:
        name: Name on the command line and in reports.
        load: Request rate as a share of the rate at saturation.
        allowed: Errors that do not fail this stage.
    """

    name: str
    load: float = _NORMAL
    allowed: frozenset[str] = frozenset()

    @property
    def overloads(self) -> bool:
        return self.load > 1

    def connections(self, usual: int) -> int:
        """Number of concurrent requests in this stage."""
        return usual * _OVERLOAD_CONNECTIONS if self.overloads else usual


STAGES = (
    Stage("steady"),
    Stage("swap_storm"),  # versions are activated in turn
    Stage("redis_killed"),  # Redis is killed and restarted
    Stage("redis_stalled"),  # Redis is paused and resumed
    Stage("replica_killed"),  # a replica is killed and restarted
    Stage("overload", _OVERLOAD, frozenset({"503 overloaded"})),
    Stage("drain"),  # a replica stops on SIGTERM and is restarted
)
STAGE_NAMES = tuple(stage.name for stage in STAGES)


def stages_by_name(names: Sequence[str]) -> list[Stage]:
    """Select stages by name. They keep the order of the given names.

    Raises:
        ValueError: If a name is unknown.
    """
    by_name = {stage.name: stage for stage in STAGES}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"expected stages among {','.join(STAGE_NAMES)}, found {','.join(unknown)}")
    return [by_name[name] for name in names]
