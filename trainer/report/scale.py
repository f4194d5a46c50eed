"""Scales of charts: from a value to a position, and the values of the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

_MOST_STEPS, _MOST_LOG_TICKS = 6, 9
# A smaller range is drawn with this size, so that equal values do not fill the chart.
_LEAST_RANGE = 1e-9

# Checked by the tests at run time, where an int is no float.
Number: TypeAlias = int | float


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        title: The quantity and its unit.
        log: Whether the axis is logarithmic. Its values must then be positive.
        least: The lower end; default: the least value.
        most: The upper end; default: the greatest value.
    """

    title: str
    log: bool = False
    least: Number | None = None
    most: Number | None = None


@dataclass(frozen=True)
class Scale:
    """Maps the values of an axis to positions from `start` to `stop`."""

    low: Number
    high: Number
    log: bool
    start: Number
    stop: Number

    @classmethod
    def of(cls, axis: Axis, values: Iterable[Number], start: Number, stop: Number) -> Scale:
        """The scale for some values. The ends that the axis leaves open are rounded to ticks."""
        given = list(values) or [1.0 if axis.log else 0.0]
        low = min(given) if axis.least is None else axis.least
        high = max(given) if axis.most is None else axis.most
        if axis.log:
            return cls(low / 1.15, high * 1.15, True, start, stop)
        if high - low < _LEAST_RANGE:
            low, high = low - 0.5, high + 0.5
        step = _round_step((high - low) / _MOST_STEPS)
        low = math.floor(low / step) * step if axis.least is None else low
        high = math.ceil(high / step) * step if axis.most is None else high
        return cls(low, high, False, start, stop)

    def __call__(self, value: Number) -> float:
        low, high, at = (
            (math.log(each) for each in (self.low, self.high, value))
            if self.log
            else (
                self.low,
                self.high,
                value,
            )
        )
        return self.start + (self.stop - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found: list[float] = []
            # The densest ticks that leave room for their numbers.
            for factors in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
                found = [factor * 10.0**power for power in powers for factor in factors]
                found = [tick for tick in found if self.low <= tick <= self.high]
                if len(found) <= _MOST_LOG_TICKS:
                    break
            return found
        step = _round_step((self.high - self.low) / _MOST_STEPS)
        first, last = math.ceil(self.low / step - 1e-6), math.floor(self.high / step + 1e-6)
        return [round(number * step, 12) for number in range(first, last + 1)]


def _round_step(least: Number) -> float:
    """The smallest round number that is at least `least`. A round number is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
