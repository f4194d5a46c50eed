"""The folder of a comparison, and what of it is done already.

DIR/   comparison.json   the dataset's digest, and the flags of every run that is trained or tuned
       untrained/        the run of the encoder as it was given
       runs/NAME/        a run a contestant and seed: NAME, or NAME-seed3
       report.md  report.html  report.json  plots/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from index_builder.compare.contest import UNTRAINED, Run
from index_builder.errors import BuildError
from trainer.files import write_json
from trainer.memory import is_complete

_FORMAT_VERSION = 1

Step = Literal["begin", "train", "tune"]


class ComparisonFolder:
    """Its paths, and the notes on what is done."""

    def __init__(self, path: Path) -> None:
        self.path, self.plots = path, path / "plots"
        self._notes_path = path / "comparison.json"
        self._notes: dict[str, Any] = {}

    def run(self, run: Run) -> Path:
        """The run folder."""
        return self.path / UNTRAINED if run.contestant.name == UNTRAINED else self.path / "runs" / run.name

    @property
    def untrained(self) -> Path:
        return self.path / UNTRAINED

    def begin(self, runs: list[Run], dataset_sha256: str) -> None:
        """Make way for a comparison, or let one go on.

        Raises:
            BuildError: If the folder holds anything else, a comparison on another dataset, or a contestant that was
                trained with other flags.
        """
        self._notes = self._read() or {"format_version": _FORMAT_VERSION, "dataset_sha256": dataset_sha256, "runs": {}}
        if self._notes["dataset_sha256"] != dataset_sha256:
            raise BuildError(
                f"{self.path}: expected a comparison on this dataset, found one on another; choose another --out"
            )
        for run in runs:
            noted = self._notes["runs"].get(run.name, {}).get("train")
            if noted is not None and self._finished(run) and set(noted) != set(run.contestant.flags):
                differs = sorted({flag.partition("=")[0] for flag in {*noted} ^ {*run.contestant.flags}})
                raise BuildError(
                    f"{self.run(run)}: expected {run.name} trained with these flags, found one that differs in "
                    f"{', '.join(differs)}; give the same again, or choose another --out"
                )
        self.plots.mkdir(parents=True, exist_ok=True)
        write_json(self._notes_path, self._notes)

    def has_begun(self, run: Run, flags: tuple[str, ...]) -> bool:
        """Whether a training with these flags was begun here."""
        return set(self._notes["runs"].get(run.name, {}).get("begin", ())) == set(flags)

    def is_done(self, run: Run, step: Step, flags: tuple[str, ...]) -> bool:
        """Whether this step is noted as done with these flags, and its memory still there."""
        noted = self._notes["runs"].get(run.name, {}).get(step)
        return noted is not None and set(noted) == set(flags) and self._finished(run)

    def note(self, run: Run, step: Step, flags: tuple[str, ...]) -> None:
        """A step is done; those that follow it are to be done again."""
        noted = {} if step == "begin" else self._notes["runs"].get(run.name, {})
        self._notes["runs"][run.name] = noted | {step: list(flags)}
        write_json(self._notes_path, self._notes)

    def _finished(self, run: Run) -> bool:
        return is_complete(self.run(run) / "memory")

    def _read(self) -> dict[str, Any] | None:
        """The notes; None where the folder is absent or empty."""
        if not self._notes_path.is_file():
            found = sorted(path.name for path in self.path.iterdir()) if self.path.exists() else []
            if found:
                raise BuildError(
                    f"{self.path}: expected no such folder, an empty one or a comparison, found {found[0]} in it; "
                    "choose another --out"
                )
            return None
        try:
            notes: dict[str, Any] = json.loads(self._notes_path.read_text(encoding="utf-8"))
            if (version := notes["format_version"]) != _FORMAT_VERSION:
                raise ValueError(f"format_version {version}")
            notes["dataset_sha256"], [dict(steps) for steps in notes["runs"].values()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BuildError(
                f"{self._notes_path}: expected a comparison of format_version {_FORMAT_VERSION}, found: {error!r}; "
                "choose another --out"
            ) from None
        return notes
