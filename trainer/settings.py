"""What the trainer can be told: environment variable, flag, default and help of each setting, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, CliImplicitFlag, CliPositionalArg, SettingsConfigDict


class TrainerSettings(BaseSettings):
    """Every setting `x_y` is also the environment variable `RECOLLECT_X_Y` and the flag `--x-y`."""

    model_config = SettingsConfigDict(env_prefix="RECOLLECT_", frozen=True, cli_kebab_case=True)


class SampleSettings(TrainerSettings):
    """Write the built-in sample dataset: the Python standard library's own documentation."""

    folder: CliPositionalArg[Path] = Field(description="folder to write; must be absent or empty")


def _no_training(epochs: int) -> int:
    if epochs != 0:
        raise ValueError("0, as this release trains no encoder: it remembers with a pretrained one")
    return epochs


class TrainSettings(TrainerSettings):
    """Encode a dataset's instances and labels into a run folder: checkpoint/ and memory/."""

    dataset: CliPositionalArg[Path] = Field(description="dataset folder")
    out: Path = Field(description="run folder to write")
    format: Literal["auto", "native", "xmc", "pecos", "parquet"] = Field(
        "auto", description="the dataset's layout; auto recognises it from the folder's files"
    )
    epochs: Annotated[int, AfterValidator(_no_training)] = Field(
        0, description="passes over the instances; 0, the only choice so far, trains nothing"
    )
    encoder: str = Field(
        "minilm", description="Hugging Face encoder by name or folder; minilm is the packaged all-MiniLM-L6-v2"
    )
    pooling: Literal["auto", "mean", "cls"] = Field(
        "auto", description="how token vectors become one; auto takes what the encoder declares, else the mean"
    )
    max_length: int = Field(128, ge=3, le=8192, description="tokens at which instances and queries are cut")
    label_max_length: int = Field(32, ge=3, le=8192, description="tokens at which label texts are cut")
    key_dtype: Literal["float32", "float16"] = Field("float32", description="type in which keys are stored")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to encode")
    overwrite: CliImplicitFlag[bool] = Field(False, description="replace another memory in the run folder")
