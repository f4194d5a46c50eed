"""The output folder of a comparison, with a record of its finished steps.

DIR/   comparison.json   the dataset's digest, and the flags with which each run was trained and tuned
       untrained/        the run of the untrained encoder
       runs/NAME/        one run for each contestant and seed: NAME, or NAME-seed3
       report.md  report.html  report.json  plots/
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from recollect.index_builder.compare.plan import UNTRAINED, Run
from recollect.index_builder.errors import BuildError
from recollect.service.files import write_json
from recollect.trainer.memory.memory import is_complete

_FORMAT_VERSION = 1

Step = Literal["begin", "train", "tune"]


class ComparisonFolder:
    """The files of a comparison, and the record of its finished steps."""

    def __init__(self, path: Path) -> None:
        self.path, self.plots = path, path / "plots"
        self._record_path = path / "comparison.json"
        self._record: dict[str, Any] = {}

    def run(self, run: Run) -> Path:
        """The folder of a run."""
        return self.path / UNTRAINED if run.contestant.name == UNTRAINED else self.path / "runs" / run.name

    @property
    def untrained(self) -> Path:
        return self.path / UNTRAINED

    def open(self, runs: list[Run], dataset_sha256: str) -> None:
        """Create the folder, or open it to continue an earlier comparison.

        Raises:
            BuildError: If the folder holds files of something else, a comparison on another dataset, or a contestant
                that was trained with other flags.
        """
        self._record = self._read() or {"format_version": _FORMAT_VERSION, "dataset_sha256": dataset_sha256, "runs": {}}
        if self._record["dataset_sha256"] != dataset_sha256:
            raise BuildError(
                f"{self.path}: expected a comparison on this dataset, found a comparison on another dataset; "
                "choose another --out"
            )
        for run in runs:
            recorded = self._record["runs"].get(run.name, {}).get("train")
            if recorded is not None and self._has_memory(run) and set(recorded) != set(run.contestant.flags):
                differing = sorted({flag.partition("=")[0] for flag in {*recorded} ^ {*run.contestant.flags}})
                raise BuildError(
                    f"{self.run(run)}: expected {run.name} trained with these flags, found other values of "
                    f"{', '.join(differing)}; give the same flags again, or choose another --out"
                )
        self.plots.mkdir(parents=True, exist_ok=True)
        write_json(self._record_path, self._record)

    def has_begun(self, run: Run, flags: tuple[str, ...]) -> bool:
        """Whether the training of this run has begun with these flags."""
        return set(self._record["runs"].get(run.name, {}).get("begin", ())) == set(flags)

    def is_done(self, run: Run, step: Step, flags: tuple[str, ...]) -> bool:
        """Whether this step was finished with these flags, and the run's memory still exists."""
        recorded = self._record["runs"].get(run.name, {}).get(step)
        return recorded is not None and set(recorded) == set(flags) and self._has_memory(run)

    def record(self, run: Run, step: Step, flags: tuple[str, ...]) -> None:
        """Record that a step is done. Recording `begin` discards the run's other steps."""
        steps = {} if step == "begin" else self._record["runs"].get(run.name, {})
        self._record["runs"][run.name] = steps | {step: list(flags)}
        write_json(self._record_path, self._record)

    def _has_memory(self, run: Run) -> bool:
        return is_complete(self.run(run) / "memory")

    def _read(self) -> dict[str, Any] | None:
        """Read the record of finished steps; None if the folder is absent or empty."""
        if not self._record_path.is_file():
            found = sorted(path.name for path in self.path.iterdir()) if self.path.exists() else []
            if found:
                raise BuildError(
                    f"{self.path}: expected an absent folder, an empty folder or a comparison, found {found[0]} in it; "
                    "choose another --out"
                )
            return None
        try:
            record: dict[str, Any] = json.loads(self._record_path.read_text(encoding="utf-8"))
            if (version := record["format_version"]) != _FORMAT_VERSION:
                raise ValueError(f"format_version {version}")
            record["dataset_sha256"], [dict(steps) for steps in record["runs"].values()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BuildError(
                f"{self._record_path}: expected a comparison with format_version {_FORMAT_VERSION}, found: {error!r}; "
                "choose another --out"
            ) from None
        return record
