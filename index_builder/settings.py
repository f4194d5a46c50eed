"""What the index builder can be told: environment variable, flag, default and help of each setting, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ByteSize, Field
from pydantic_settings import BaseSettings, CliImplicitFlag, CliPositionalArg, SettingsConfigDict

from service.manifest import Precision
from service.schemas import Lambda, Temperature, TopB
from service.settings import NO_WORD, Device, Location
from trainer.settings import Listed


class BuilderSettings(BaseSettings):
    """Every setting `x_y` is also the environment variable `RECOLLECT_X_Y` and the flag `--x-y`."""

    model_config = SettingsConfigDict(
        env_prefix="RECOLLECT_",
        frozen=True,
        cli_kebab_case=True,
        allow_inf_nan=False,
        env_prefix_target="all",
        cli_hide_none_type=True,
        cli_parse_none_str=NO_WORD,
    )


class BuildSettings(BuilderSettings):
    """Export, index, check and publish a run as a bundle; the last line printed is its version."""

    run: CliPositionalArg[Path] = Field(description="run folder, as `recollect train` wrote it")
    store: Location = Field(description="bundle store to publish in, a folder or a URL; created when absent")
    bundle_cache: Path | None = Field(
        None, description="where bundles for a store at a URL are kept; unset: ~/.cache/recollect"
    )
    index: str = Field(
        "auto",
        min_length=1,
        description="auto: measured and chosen; flat: exact; ivf: lists; hnsw: a graph; or a faiss factory string",
    )
    recall_target: float = Field(
        0.98, gt=0, le=1, description="share of the exact top b keys that an index must find, at the memory's own b"
    )
    memory_budget: ByteSize | None = Field(None, gt=0, description="most that both indexes may take, as in 2GB")
    latency_budget_ms: float | None = Field(
        None, gt=0, description="most milliseconds that a query's search may take, on one thread"
    )
    precision: Precision = Field("fp32", description="precision of the query encoder; fp16 is for GPUs, int8 for CPUs")
    sign: Path | None = Field(
        None,
        description="Ed25519 private key, in PEM without a passphrase, to sign the bundle with; unset: no signature",
    )
    gate_dataset: Path | None = Field(
        None, description="dataset on whose test split the bundle may lose no more than --max-drop to the current one"
    )
    max_drop: float = Field(0.5, ge=0, description="points of P@1, P@5, nDCG@5 and R@100 that it may lose there")
    report: Path | None = Field(None, description="folder for a plot of each part's measured indexes; unset: no plots")
    force: CliImplicitFlag[bool] = Field(False, description="publish even if a check fails; the manifest tells")
    activate: CliImplicitFlag[bool] = Field(False, description="make the new version current")
    threads: int = Field(0, ge=0, description="threads to build with; 0: one a core")
    device: Device = Field("cpu", description="where to train and fill indexes: cpu, cuda, if there is a GPU, or auto")


class EvaluateSettings(BuilderSettings):
    """Measure a bundle on a dataset's test split, through the pipeline that serves; one row a setting, in percent."""

    dataset: CliPositionalArg[Path] = Field(description="dataset folder")
    store: Location = Field(description="bundle store: a folder, or a URL as in s3://bucket/store")
    bundle_cache: Path | None = Field(
        None, description="where bundles of a store at a URL are kept; unset: ~/.cache/recollect"
    )
    version: str = Field("current", description="version to measure")
    verify_key: Path | None = Field(
        None, description="Ed25519 public key, in PEM, that the bundle must be signed for; unset: it need not be signed"
    )
    format: Literal["auto", "native", "xmc", "pecos", "parquet"] = Field(
        "auto", description="the dataset's layout; auto recognises it from the folder's files"
    )
    lambda_: Annotated[list[Lambda], *Listed] = Field(
        [], alias="lambda", description="one or several, as in 0,0.1,0.5; none: the bundle's own"
    )
    temperature: Annotated[list[Temperature], *Listed] = Field(
        [], description="one or several tau; none: the bundle's own"
    )
    top_b: Annotated[list[TopB], *Listed] = Field(
        [], description="one or several numbers of keys; none: the bundle's own"
    )
    propensity: Annotated[tuple[float, Annotated[float, Field(gt=0)]], *Listed] = Field(
        (0.55, 1.5), description="A,B of the propensity model behind PSP@k: .6,2.6 for Amazon, .5,.4 for Wikipedia"
    )
    limit: int = Field(0, ge=0, description="use only the first test texts; 0: all")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON for machines")
    threads: int = Field(0, ge=0, description="threads to search and encode with; 0: one a core")


class DemoSettings(BuilderSettings):
    """The whole road on this machine: sample, memory, bundle, evaluation, service."""

    folder: CliPositionalArg[Path] = Field(Path("demo"), description="folder to work in")
    serve: CliImplicitFlag[bool] = Field(True, description="keep serving until Ctrl-C")
    host: str = Field("127.0.0.1", description="address to serve on")
    port: int = Field(8000, ge=0, le=65535, description="port to serve on; 0: any free one")
