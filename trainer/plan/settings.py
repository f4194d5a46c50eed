"""The flags of `recollect plan`: those of `recollect train`, and the number of processes."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.trainer.train_settings import TrainSettings


class PlanSettings(TrainSettings):
    """Estimate the memory and the hours of a training from a short trial on a sample, before the training."""

    out: Path = Field(Path("run"), description="run folder of the training; the plan writes nothing there")
    gpus: int = Field(1, ge=1, description="number of processes on one host: one for each GPU, or for each CPU core")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON")
