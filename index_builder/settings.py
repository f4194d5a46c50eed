"""What the index builder can be told: environment variable, flag, default and help of each setting, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field
from pydantic_settings import BaseSettings, CliImplicitFlag, CliPositionalArg, SettingsConfigDict

from service.bundle.manifest import Precision
from service.options import Lambda, Temperature, TopB
from service.settings import NO_WORD, Device, Location
from trainer.settings import (
    BatchSize,
    EncoderName,
    LabelMaxLength,
    Layout,
    LearningRate,
    Listed,
    MaxLength,
    MaxSeconds,
    MaxSteps,
    MethodName,
    Metric,
    NotEmpty,
    Pooling,
    Propensity,
    Trained,
    TrainingDevice,
    TrainingPrecision,
)

# Whatever `recollect train --method` knows can be compared.
METHODS: tuple[str, ...] = get_args(MethodName)


def _known(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"one of {', '.join(METHODS)}")
    return method


def _each_once(values: list[str] | list[int]) -> list[str] | list[int]:
    if len(set(values)) < len(values):
        raise ValueError("each one once")
    return values


# No word at all is no method, not one without a name: a variants file may be all there is to compare.
_OrNone = BeforeValidator(lambda given: [] if given == "" else given)


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
    format: Layout = "auto"
    lambda_: Annotated[list[Lambda], *Listed] = Field(
        [], alias="lambda", description="one or several, as in 0,0.1,0.5; none: the bundle's own"
    )
    temperature: Annotated[list[Temperature], *Listed] = Field(
        [], description="one or several tau; none: the bundle's own"
    )
    top_b: Annotated[list[TopB], *Listed] = Field(
        [], description="one or several numbers of keys; none: the bundle's own"
    )
    propensity: Propensity = (0.55, 1.5)
    limit: int = Field(0, ge=0, description="use only the first test texts; 0: all")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON for machines")
    threads: int = Field(0, ge=0, description="threads to search and encode with; 0: one a core")


class CompareSettings(BuilderSettings):
    """Train methods on one dataset with one encoder, budget and seed, measure them, and write a table and a report."""

    dataset: CliPositionalArg[Path] = Field(description="dataset folder")
    out: Path = Field(description="folder for the runs and the report; one with a comparison in it goes on")
    methods: Annotated[list[Annotated[str, AfterValidator(_known)]], AfterValidator(_each_once), *Listed, _OrNone] = (
        Field(list(METHODS), description="one or several, as in rae,dexml")
    )
    variants: Path | None = Field(
        None,
        description="TOML file, a table a variant: flags of `recollect train`, with underscores, as in clusters = 0",
    )
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], AfterValidator(_each_once), *Listed, NotEmpty] = Field(
        [0], description="one or several; each method is trained once a seed"
    )
    format: Layout = "auto"
    encoder: EncoderName = "minilm"
    pooling: Pooling = "auto"
    max_length: MaxLength = 128
    label_max_length: LabelMaxLength = 32
    train: Trained = "adapter"
    epochs: int | None = Field(
        None,
        ge=1,
        description="passes over the instances; unset: --max-seconds, or 15 for an adapter, 3 for full",
    )
    max_steps: MaxSteps = 0
    max_seconds: MaxSeconds = 0
    batch_size: BatchSize = None
    learning_rate: LearningRate = None
    precision: TrainingPrecision = "auto"
    device: TrainingDevice = "auto"
    metric: Metric = Field("nDCG@5", description="what each memory is tuned for, and what says which two are the best")
    propensity: Propensity = (0.55, 1.5)
    limit: int = Field(0, ge=0, description="use only the first test texts; 0: all")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON for machines")


class DemoSettings(BuilderSettings):
    """The whole road on this machine: sample, memory, bundle, evaluation, service."""

    folder: CliPositionalArg[Path] = Field(Path("demo"), description="folder to work in")
    serve: CliImplicitFlag[bool] = Field(True, description="keep serving until Ctrl-C")
    host: str = Field("127.0.0.1", description="address to serve on")
    port: int = Field(8000, ge=0, le=65535, description="port to serve on; 0: any free one")
