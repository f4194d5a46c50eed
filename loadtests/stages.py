"""The stages of a load test: what happens meanwhile, how much is asked, and which errors are no fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_USUAL, _FAR_TOO_MUCH = 0.4, 3.0
# How many times the connections it takes until replicas' queues are full.
_CROWD = 16


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: As it is chosen and reported.
        load: Requests a second, as a share of what is answered at saturation.
        allowed: Errors that a client must expect here.
    """

    name: str
    load: float = _USUAL
    allowed: frozenset[str] = frozenset()

    @property
    def overloads(self) -> bool:
        return self.load > 1

    def connections(self, usual: int) -> int:
        """How many requests may be under way at once, of so many as a rule."""
        return usual * _CROWD if self.overloads else usual


STAGES = (
    Stage("steady"),
    Stage("swap_storm"),  # versions are activated in turn
    Stage("redis_killed"),  # kill -9 of Redis, which comes back
    Stage("redis_stalled"),  # Redis keeps its connections and answers nothing, for a while
    Stage("replica_killed"),  # kill -9 of a replica, which comes back
    Stage("overload", _FAR_TOO_MUCH, frozenset({"503 overloaded"})),
    Stage("drain"),  # SIGTERM to a replica, which comes back
)
NAMES = tuple(stage.name for stage in STAGES)


def chosen(names: Sequence[str]) -> list[Stage]:
    """Stages by name, in the order given.

    Raises:
        ValueError: If one is unknown.
    """
    by_name = {stage.name: stage for stage in STAGES}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"expected stages among {','.join(NAMES)}, found {','.join(unknown)}")
    return [by_name[name] for name in names]
