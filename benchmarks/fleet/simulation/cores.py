"""The cores of a machine, which tasks share, and threads that run one task after the other."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

import simpy

from benchmarks.fleet.constants import ThreadCost

# Number of pauses of a thread over which their mean is taken.
_PAUSES = 50


class Cores:
    """Cores with processor sharing: more tasks than cores run at equal, lower speeds.

    Args:
        environment: Clock of the simulation.
        count: Number of cores, minus the share of a core that other work uses.
        slowdown: Factor by which a task takes longer while another core is busy too.
        slowness: Factor by which a task takes longer that starts at this time.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        count: float,
        slowdown: float = 1.0,
        slowness: Callable[[float], float] = lambda _: 1.0,
    ) -> None:
        self._environment, self._count, self._slowdown, self._slowness = environment, count, slowdown, slowness
        # All tasks run at one speed. So the CPU time that a task has had since a common origin orders their ends.
        self._progress, self._since, self._waited = 0.0, 0.0, 0.0
        self._tasks: list[tuple[float, int, simpy.Event]] = []  # a heap of the ends, in units of `_progress`
        self._numbers = itertools.count()
        self._timer = 0

    def run(self, seconds: float) -> simpy.Event:
        """Run a task that needs this CPU time at the mean speed; the event happens at its end."""
        self._advance()
        done = self._environment.event()
        heapq.heappush(self._tasks, (self._progress + self.slowness * seconds, next(self._numbers), done))
        self._set_timer()
        return done

    def stop(self, task: simpy.Event) -> None:
        """Stop a task; its event never happens."""
        self._advance()
        self._tasks = [each for each in self._tasks if each[2] is not task]
        heapq.heapify(self._tasks)
        self._set_timer()

    @property
    def slowness(self) -> float:
        """Factor by which a task takes longer that starts now."""
        return self._slowness(self._environment.now)

    @property
    def are_busy(self) -> bool:
        """Whether a task runs."""
        return bool(self._tasks)

    @property
    def waited(self) -> float:
        """Seconds that a task loses to other tasks, from the start until now, if it runs all the time."""
        self._advance()
        return self._waited

    @property
    def _share(self) -> float:
        """The share of a core that each task has."""
        return min(1.0, self._count / max(1, len(self._tasks)))

    @property
    def _speed(self) -> float:
        slowdown = self._slowdown if len(self._tasks) > 1 and self._count > 1 else 1.0
        return self._share / slowdown

    def _advance(self) -> None:
        seconds = self._environment.now - self._since
        self._progress += seconds * self._speed
        self._waited += seconds * (1 - self._share)
        self._since = self._environment.now

    def _set_timer(self) -> None:
        """Wake up at the next end. Timers that were set before are ignored, because the speed has changed."""
        self._timer += 1
        if self._tasks:
            seconds = max(0.0, self._tasks[0][0] - self._progress) / self._speed
            self._environment.timeout(seconds, self._timer).callbacks.append(self._end_first)

    def _end_first(self, timer: simpy.Event) -> None:
        if timer.value != self._timer:
            return
        self._advance()
        end, _, done = heapq.heappop(self._tasks)
        self._progress = max(self._progress, end)  # against rounding
        done.succeed()
        self._set_timer()


class Thread:
    """Runs tasks one after the other, as an event loop does.

    A task that wakes up the thread costs more, by the exponentially weighted mean of the last pauses.

    Attributes:
        cpu_seconds: CPU time of all tasks that have begun, at the mean speed.

    Args:
        environment: Clock of the simulation.
        cores: Cores that the tasks use.
    """

    def __init__(self, environment: simpy.Environment, cores: Cores) -> None:
        self._environment, self._cores = environment, cores
        self.cpu_seconds = 0.0
        self._waiting: deque[tuple[ThreadCost, simpy.Event]] = deque()
        self._busy, self._pause_ms = False, 0.0
        self._idle_since: float | None = None  # None before the first task

    def run(self, cost: ThreadCost) -> simpy.Event:
        """Run a task after all earlier ones; the event happens at its end."""
        done, now = self._environment.event(), self._environment.now
        if self._busy:
            self._waiting.append((cost, done))
        elif now == self._idle_since:  # the task continues the one that has just ended
            self._start(cost.busy_ms, done)
        else:
            pause_ms = 1e3 * (now - (self._idle_since or 0.0))
            self._pause_ms += (pause_ms - self._pause_ms) / _PAUSES
            self._start(cost.after(self._pause_ms), done)
        return done

    def _start(self, milliseconds: float, done: simpy.Event) -> None:
        self._busy = True
        self.cpu_seconds += milliseconds / 1e3
        self._cores.run(milliseconds / 1e3).callbacks.append(lambda _: self._end(done))

    def _end(self, done: simpy.Event) -> None:
        done.succeed()
        if self._waiting:
            cost, waiting = self._waiting.popleft()
            self._start(cost.busy_ms, waiting)
        else:
            self._busy, self._idle_since = False, self._environment.now
