"""Held-out texts, and the rule that keeps every figure honest.

**A text that took part in a training or a distillation of a run, or of a run from which it started, never judges, tunes
or calibrates that run.** Validation, `tune`, `rank`, `build` and `--best` use held-out texts only. A run that learnt
nothing holds out all texts.

Each text has a number from 0 to 1 that depends only on its words and a seed. The texts whose number is below a limit
are held out. So equal texts are on the same side, and a text stays on its side if the dataset grows or is reordered.
The configuration of an encoder records seed and limit. A training that starts from the encoder keeps the seed and never
raises the limit, so it holds out no text from which the encoder has learnt. New texts are divided by the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from recollect.trainer.data.split import text_numbers

# Without --validation-fraction: this share of the labelled texts, but at least so many texts, or at most so large a
# share of a small dataset.
_SHARE, _ENOUGH_TEXTS, _LARGEST_SHARE = 0.05, 600, 0.2
_MOST_TEXTS = 4_000


@dataclass(frozen=True)
class HeldOutTexts:
    """The texts whose number is at least `start` and less than `below`.

    Attributes:
        below: The limit. 1: all texts; 0: none.
        start: 0, except for a part of the held-out texts.
    """

    seed: int = 0
    below: float = 1.0
    start: float = 0.0

    @classmethod
    def choose(
        cls,
        texts: Iterable[str],
        labelled: Bool[np.ndarray, " text"],
        fraction: float | None,
        seed: int,
        earlier: HeldOutTexts,
    ) -> HeldOutTexts:
        """Choose the texts that a training holds out. At least one labelled text stays in training.

        Args:
            labelled: Whether each text has labels. Only these texts are counted.
            fraction: Share of the labelled texts; None: the default for their number.
            seed: Seed of the numbers, if the encoder has learnt nothing yet.
            earlier: The texts from which the encoder has not learnt.
        """
        seed = seed if earlier == ALL else earlier.seed
        rising = np.sort(text_numbers(texts, len(labelled), str(seed))[labelled])
        count = min(_count(len(rising), fraction), max(0, len(rising) - 1))
        return cls(seed, min(float(rising[count]), earlier.below) if count else 0.0)

    @classmethod
    def of_json(cls, saved: Any) -> HeldOutTexts:
        """Read the record of a configuration. None: the encoder has learnt nothing.

        Raises:
            ValueError: If it is no such record.
        """
        if saved is None:
            return ALL
        try:
            held_out = cls(int(saved["seed"]), float(saved["below"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"held_out {saved!r}") from error
        if held_out.as_json() != saved or not (held_out.seed >= 0 and 0 <= held_out.below <= 1):
            raise ValueError(f"held_out {saved!r}")
        return held_out

    def as_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "below": self.below}

    def halves(self, texts: Iterable[str], labelled: Bool[np.ndarray, " text"]) -> tuple[HeldOutTexts, HeldOutTexts]:
        """Divide the held-out texts into two parts with equally many labelled texts."""
        numbers = text_numbers(texts, len(labelled), str(self.seed))[labelled]
        middle = float(np.median(numbers[(self.start <= numbers) & (numbers < self.below)]))
        return HeldOutTexts(self.seed, middle, self.start), HeldOutTexts(self.seed, self.below, middle)

    def mask(self, texts: Iterable[str], count: int) -> Bool[np.ndarray, " text"]:
        """Whether each of `count` texts is held out.

        Raises:
            ValueError: If there are fewer texts.
        """
        if self.below == 0 or self == ALL:
            return np.full(count, self == ALL)
        numbers = text_numbers(texts, count, str(self.seed))
        return (self.start <= numbers) & (numbers < self.below)


# The held-out texts of an encoder that has learnt nothing: a pretrained one.
ALL = HeldOutTexts()


def _count(texts: int, fraction: float | None) -> int:
    if fraction is None:
        return round(min(max(_SHARE * texts, _ENOUGH_TEXTS), _LARGEST_SHARE * texts, _MOST_TEXTS))
    return min(round(fraction * texts), _MOST_TEXTS)
