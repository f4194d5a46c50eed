"""What the trainer can be told: environment variable, flag, default and help of each setting, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, CliImplicitFlag, CliPositionalArg, NoDecode, SettingsConfigDict


def _split(value: object) -> object:
    """A list as flags and variables write it: 0,.1,.5."""
    return value.split(",") if isinstance(value, str) else value


Listed = (NoDecode, BeforeValidator(_split))
NotEmpty = Field(min_length=1)
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]

# What several verbs can be told alike.
Layout = Annotated[
    Literal["auto", "native", "xmc", "pecos", "parquet"],
    Field(description="the dataset's layout; auto recognises it from the folder's files"),
]
EncoderName = Annotated[
    str,
    Field(
        description="Hugging Face encoder by name or folder, or a run's checkpoint/; minilm: packaged all-MiniLM-L6-v2"
    ),
]
Pooling = Annotated[
    Literal["auto", "mean", "cls"],
    Field(description="how token vectors become one; auto takes what the encoder declares, else the mean"),
]
MaxLength = Annotated[int, Field(ge=3, le=8192, description="tokens at which instances and queries are cut")]
LabelMaxLength = Annotated[int, Field(ge=3, le=8192, description="tokens at which label texts are cut")]
Trained = Annotated[
    Literal["adapter", "full"],
    Field(description="adapter: a small head on a frozen encoder, minutes on a CPU; full: the whole encoder"),
]
MaxSteps = Annotated[int, Field(ge=0, description="optimizer steps at most; 0: as many as the epochs have")]
MaxSeconds = Annotated[
    float,
    Field(ge=0, description="seconds at which training ends, its learning rate falling with the time; 0: no limit"),
]
BatchSize = Annotated[
    Annotated[int, Field(ge=1)] | None,
    Field(description="queries a step; unset: 256 for an adapter, 128 for full, or all there are"),
]
LearningRate = Annotated[
    Positive | None, Field(description="peak of AdamW's rate; unset: 1e-3 for an adapter, 1e-4 for full")
]
TrainingPrecision = Annotated[
    Literal["auto", "fp32", "bf16"],
    Field(description="of matrix products while training; auto: bf16 on a GPU, fp32 on a CPU"),
]
TrainingDevice = Annotated[Literal["auto", "cpu", "cuda"], Field(description="where to train and encode")]
Metric = Literal["P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100"]
Propensity = Annotated[
    tuple[float, Positive],
    *Listed,
    Field(description="A,B of the propensity model behind PSP@k: .6,2.6 for Amazon, .5,.4 for Wikipedia"),
]


class TrainerSettings(BaseSettings):
    """Every setting `x_y` is also the environment variable `RECOLLECT_X_Y` and the flag `--x-y`."""

    model_config = SettingsConfigDict(
        env_prefix="RECOLLECT_",
        frozen=True,
        cli_kebab_case=True,
        allow_inf_nan=False,
        env_prefix_target="all",
        cli_hide_none_type=True,
    )


class SampleSettings(TrainerSettings):
    """Write the built-in sample dataset: the Python standard library's own documentation."""

    folder: CliPositionalArg[Path] = Field(description="folder to write; must be absent or empty")


class TrainSettings(TrainerSettings):
    """Train an encoder on a dataset and remember the dataset with it: checkpoint/ and memory/ in a run folder."""

    dataset: CliPositionalArg[Path] = Field(description="dataset folder")
    out: Path = Field(description="run folder to write")
    format: Layout = "auto"
    encoder: EncoderName = "minilm"
    pooling: Pooling = "auto"
    max_length: MaxLength = 128
    label_max_length: LabelMaxLength = 32
    train: Trained = "adapter"
    method: Literal["rae", "dexml", "softtopk", "prime", "unidec", "supcon", "infonce"] = Field(
        "rae", description="loss, pool of keys, and what is learnt above the encoder"
    )
    epochs: int | None = Field(
        None,
        ge=0,
        description="passes over the instances; 0: no training; unset: --max-seconds, or 15 for an adapter, 3 for full",
    )
    max_steps: MaxSteps = 0
    max_seconds: MaxSeconds = 0
    batch_size: BatchSize = None
    learning_rate: LearningRate = None
    temperature: float | None = Field(
        None, gt=0, description="tau of the loss; unset: the method's, from 0.04 to 0.056; prime has none"
    )
    positives: int | None = Field(
        None, ge=0, description="true labels drawn for the pool a query and visit; 0: all; unset: the method's"
    )
    positive_sampling: Literal["uniform", "propensity"] | None = Field(
        None, description="how they are drawn: all alike, or rare ones more often; unset: the latter for prime"
    )
    hard_negatives: int | None = Field(
        None,
        ge=0,
        description="mined labels pushed away a query; unset: the method's; for dexml and softtopk all labels",
    )
    mine_every: int = Field(0, ge=0, description="steps between two minings of hard negatives; 0: an epoch")
    mine_top: int = Field(50, ge=1, description="nearest labels of an instance among which its negatives are drawn")
    mine_search: Literal["auto", "exact", "approximate"] = Field(
        "auto", description="how to find them: brute force, or inverted lists; auto: these for many on a CPU"
    )
    clusters: int | None = Field(
        None,
        ge=0,
        description="clusters of near queries that batches are made of; 0: random batches; unset: the method's",
    )
    cluster_from: int = Field(
        0, ge=0, description="epoch from which on they are; an encoder that knows no texts yet needs random ones first"
    )
    cluster_every: int | None = Field(
        None, ge=1, description="epochs between two clusterings, each of half as many; unset: a sixth of all, 5 at most"
    )
    symmetric: CliImplicitFlag[bool] = Field(
        True, description="prime, unidec, supcon: learn from labels that are asked for queries as well"
    )
    psl: Literal["pal-n", "pal"] = Field(
        "pal-n", description="unidec, supcon: the mean over a query's true labels, or their sum"
    )
    prototype: Annotated[list[Literal["text", "free", "centroid"]], *Listed, NotEmpty] = Field(
        ["text", "free", "centroid"], description="prime: what a label's prototype is made of"
    )
    bank: int | None = Field(
        None, ge=1, description="prime: free vectors that labels share; unset: a power of two, one for 2 or 3 labels"
    )
    margin: Annotated[tuple[Positive, Positive], *Listed] = Field(
        (0.1, 0.3), description="prime: bounds of the triplets' margin; a fixed one where they are equal"
    )
    micro_batch: int = Field(
        0, ge=0, description="texts that go through the encoder at once, by gradient cache; 0: as memory allows"
    )
    validation_fraction: float = Field(
        0.05, ge=0, le=0.5, description="share of the train split held out to choose the best checkpoint, 4,000 at most"
    )
    seed: int = Field(0, ge=0, description="decides every random draw")
    device: TrainingDevice = "auto"
    precision: TrainingPrecision = "auto"
    label_inputs: Literal["text", "enriched"] | None = Field(
        None,
        description="what an adapter reads of a label: its text's vector (prime), or half that, half its instances'",
    )
    label_keys: Literal["text", "enriched"] = Field(
        "text", description="a label's key: its text's vector, or that mixed with the mean of its instances'"
    )
    label_key_alpha: float = Field(0.5, ge=0, le=1, description="weight of the instances in enriched label keys")
    key_dtype: Literal["float32", "float16"] = Field("float32", description="type in which keys are stored")
    vectors: Path | None = Field(
        None, description="memory/ of a run with --epochs 0 whose keys an adapter trains on, instead of encoding again"
    )
    tune: Literal["auto", "yes", "no"] = Field(
        "auto", description="let what is held out choose the memory's lambda, as `recollect tune` does; auto: for prime"
    )
    save_minutes: float = Field(5, ge=0, description="minutes between two saves of the training's state")
    resume: CliImplicitFlag[bool] = Field(False, description="go on with the training that the run folder holds")
    overwrite: CliImplicitFlag[bool] = Field(False, description="replace what the run folder holds")

    @property
    def alpha(self) -> float:
        """Weight of the instances in label keys."""
        return self.label_key_alpha if self.label_keys == "enriched" else 0.0


class TuneSettings(TrainerSettings):
    """Choose lambda, tau, b and the label keys' alpha on held-out instances, and make them the memory's defaults."""

    run: CliPositionalArg[Path] = Field(description="run folder, as `recollect train` wrote it")
    metric: Metric = Field("nDCG@5", description="what to make as great as can be")
    queries: int = Field(2_000, ge=1, description="held-out instances to ask, at most")
    lambda_: Annotated[list[Share], *Listed, NotEmpty] = Field(
        [0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1], alias="lambda", description="lambdas to try"
    )
    temperature: Annotated[list[Positive], *Listed, NotEmpty] = Field(
        [0.02, 0.03, 0.04, 0.05, 0.07, 0.1], description="tau to try"
    )
    top_b: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], *Listed, NotEmpty] = Field(
        [25, 50, 100, 200, 400], description="numbers of keys to try"
    )
    label_key_alpha: Annotated[list[Share], *Listed, NotEmpty] = Field(
        [0, 0.25, 0.5, 0.75], description="weights of the instances in a label's key to try; 0: its text alone"
    )
    propensity: Propensity = (0.55, 1.5)
    seed: int = Field(0, ge=0, description="decides which instances are asked, where training held out none")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON for machines")
