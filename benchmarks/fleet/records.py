"""Records of measurements: JSON files with the machine and the date."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from loadtests.processes import busy_seconds, cpu_model, cpu_seconds
from recollect.service.threads import usable_cores

RECORDED = Path(__file__).parent / "recorded"


def machine_name() -> str:
    """The CPU of this machine, its number of usable cores, and its vector instructions."""
    name, flags = cpu_model()
    return f"{usable_cores()} cores, {name} ({', '.join(flags)})"


class Recorded(BaseModel):
    """Measurements of one command.

    Attributes:
        machine: The machine.
        date: The day of the measurement.
        others: Share of the machine's CPU time that other programs used meanwhile.
    """

    model_config = ConfigDict(frozen=True)

    machine: str = Field(default_factory=machine_name)
    date: str = Field(default_factory=lambda: datetime.datetime.now(datetime.UTC).date().isoformat())
    others: float = 0.0


Kind = TypeVar("Kind", bound=Recorded)


def read(kind: type[Kind], name: str) -> Kind:
    """Read recorded measurements.

    Raises:
        OSError: If nothing is recorded under this name.
        ValueError: If the file is damaged.
    """
    return kind.model_validate_json((RECORDED / f"{name}.json").read_bytes())


def record(measure: Callable[[], Recorded], name: str) -> None:
    """Measure, and write the measurements with the share of the CPU time that other programs used meanwhile."""
    start, busy, own = time.perf_counter(), busy_seconds(), cpu_seconds(os.getpid())
    recorded = measure()
    others = busy_seconds() - busy - (cpu_seconds(os.getpid()) - own)
    share = max(0.0, others / (time.perf_counter() - start) / usable_cores())
    write(recorded.model_copy(update={"others": share}), name)


def write(recorded: Recorded, name: str) -> None:
    RECORDED.mkdir(exist_ok=True)
    content = json.dumps(_rounded(recorded.model_dump(mode="json")), indent=1)
    (RECORDED / f"{name}.json").write_text(content + "\n", encoding="utf-8")


def _rounded(content: Any) -> Any:
    """Round all numbers to five digits."""
    if isinstance(content, float):
        return float(f"{content:.5g}")
    if isinstance(content, list):
        return [_rounded(each) for each in content]
    if isinstance(content, dict):
        return {name: _rounded(each) for name, each in content.items()}
    return content
