"""The methods of `recollect build --compact`, read from the flag.

merge[:SIMILARITY]   near-duplicates with equal labels become one key, which votes with their count
prune[:FLOOR]        instances that the other keys answer hand their votes over; each label keeps FLOOR instances
pca:D                vectors are rotated, and only the D dimensions with the largest variance are kept
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIMILARITY, FLOOR = 0.95, 1


@dataclass(frozen=True)
class Methods:
    """The chosen methods. They run in the order of the attributes; None means that a method is not chosen.

    Attributes:
        dim: Number of dimensions that `pca` keeps.
        similarity: Least similarity at which `merge` merges two instances.
        floor: Number of instances that `prune` leaves to each label.
    """

    dim: int | None = None
    similarity: float | None = None
    floor: int | None = None

    @classmethod
    def of(cls, flag: Sequence[str]) -> Methods:
        """Read the parts of the flag.

        Raises:
            ValueError: If a part is wrong, or a method is given twice. The message states the requirement.
        """
        chosen: dict[str, float] = {}
        for part in flag:
            name, _, argument = part.partition(":")
            field, value = _read(name.strip(), argument.strip())
            if field in chosen:
                raise ValueError("each method once")
            chosen[field] = value
        return cls(**chosen)  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        """The methods with their arguments, in the order in which they run."""
        named = (("pca", self.dim), ("merge", self.similarity), ("prune", self.floor))
        return [f"{name}:{argument:g}" for name, argument in named if argument is not None]


def check_flag(flag: list[str]) -> list[str]:
    """Check the parts of the flag, and return them unchanged; a pydantic validator."""
    Methods.of(flag)
    return flag


def _read(name: str, argument: str) -> tuple[str, float]:
    try:
        if name == "merge":
            similarity = float(argument or SIMILARITY)
            if 0 < similarity <= 1:
                return "similarity", similarity
            raise ValueError
        if name == "prune":
            return "floor", _positive(argument or str(FLOOR))
        if name == "pca":
            return "dim", _positive(argument)
    except ValueError:
        needs = {"merge": "a similarity above 0 and at most 1", "prune": "a number of instances from 1"}
        raise ValueError(f"{name}: {needs.get(name, 'a number of dimensions from 1, such as pca:128')}") from None
    raise ValueError("merge, prune or pca:D, several separated by commas")


def _positive(argument: str) -> int:
    number = int(argument)
    if number < 1:
        raise ValueError
    return number
