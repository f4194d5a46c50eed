"""The trainer's settings: environment variable, flag, default and help text of each, declared once.

`SharedTrainSettings` are the flags of `recollect train` that all methods share; each method declares its own flags in
`recollect.trainer.methods`. This module does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import CliImplicitFlag, CliPositionalArg, NoDecode

from recollect.core.settings import ReadIf, Settings, refuse_unread


def _split(value: object) -> object:
    """Split a comma-separated list in a flag or an environment variable: 0,.1,.5."""
    return value.split(",") if isinstance(value, str) else value


def _check_pooling(pooling: str) -> str:
    if pooling != "auto" and not {*pooling.split("+")} <= {*POOLINGS}:
        raise ValueError(f"auto, {', '.join(POOLINGS)}, or several, joined by +")
    return pooling


Listed = (NoDecode, BeforeValidator(_split))
NotEmpty = Field(min_length=1)
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
EmptyTexts = Literal["refuse", "drop", "keep"]
UnknownLabels = Literal["refuse", "drop"]
MethodName = Literal["rae", "dexml", "softtopk", "prime", "ngame", "unidec", "supcon", "infonce", "bce", "ova"]
PrototypeToken = Literal["text", "free", "centroid"]
ClassifierKeys = Literal["alone", "joined"]
TrainedPart = Literal["adapter", "head", "full"]

# Kinds of pooling, in the order in which sentence-transformers concatenates them.
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last")

# Value of --encoder that makes a static encoder.
STATIC = "static"
# Default of --validate-lambda.
VALIDATE_LAMBDA = (0.05, 0.1, 0.2, 0.4, 0.7)

# Settings that several verbs share.
Pooling = Annotated[
    str,
    AfterValidator(_check_pooling),
    Field(
        description="combination of token vectors into one vector: mean, cls, max, mean_sqrt_len_tokens, weightedmean, "
        "last (the last token, for decoders), or several, such as cls+mean; auto: as declared, else mean"
    ),
]
Metric = Literal["P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@100"]
Propensity = Annotated[
    tuple[float, Positive],
    *Listed,
    Field(
        description="A,B of the propensity model: .6,2.6 for Amazon, .5,.4 for Wikipedia except WikiSeeAlso, "
        ".55,1.5 for others"
    ),
]


RankChoice = Annotated[
    Literal["auto", "yes", "no"],
    Field(description="fit a ranker as the last step, as `recollect rank` does; auto: if there are enough texts"),
]


class SampleSettings(Settings):
    """Write the built-in sample dataset: the documentation of Python's standard library."""

    folder: CliPositionalArg[Path] = Field(description="folder to write; must be absent or empty")


class PresetsSettings(Settings):
    """List the presets of `recollect train --preset`, or show one preset with the source of each value."""

    preset: CliPositionalArg[str | None] = Field(None, description="name of a preset; unset: a table of all presets")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON")


class DatasetSettings(Settings):
    """A dataset folder, and how it is read: the flags of every verb that reads one."""

    dataset: CliPositionalArg[Path] = Field(description="dataset folder")
    format: Literal["auto", "native", "xmc", "pecos", "xclib", "attentionxml", "parquet", "annif"] = Field(
        "auto", description="layout of the dataset; auto: recognised from the folder's files"
    )
    text_fields: Annotated[list[str], *Listed] = Field(
        [],
        description="fields that form a text: title,content (xmc) or prefLabel,altLabel,notation (annif, for labels)",
    )
    empty_texts: EmptyTexts = Field(
        "refuse",
        description="empty texts of labels, instances and queries: refuse the dataset, drop their rows, or keep them",
    )
    label_language: str | None = Field(
        None, description="language of the label texts in a SKOS vocabulary; unset: its only language"
    )
    unknown_labels: UnknownLabels = Field(
        "refuse", description="names of labels that the dataset lacks: refuse them, or drop them"
    )


class TrainingInputs(DatasetSettings):
    """The dataset, the encoder and the length of a training: the flags that `train` and `compare` share."""

    out: Path = Field(description="run folder to write")
    encoder: str = Field(
        "minilm",
        description="Hugging Face encoder by name or folder, or a run's checkpoint/; minilm: packaged; "
        "static: token vectors",
    )
    static_from: str = Field(
        "minilm", description="encoder that gives a static encoder its tokenizer and its first token vectors"
    )
    pooling: Pooling = "auto"
    query_prompt: str | None = Field(
        None, description="text that the encoder reads before each instance and query; unset: as declared, else none"
    )
    label_prompt: str | None = Field(
        None, description="text that the encoder reads before each label; unset: as declared, else none"
    )
    max_length: int = Field(
        128, ge=3, le=8192, description="maximum number of tokens of an instance or query; longer texts are cut"
    )
    label_max_length: int = Field(
        32, ge=3, le=8192, description="maximum number of tokens of a label text; longer texts are cut"
    )
    train: TrainedPart | None = Field(
        None,
        description="adapter: a small network on a frozen encoder; head: only the method's head; full: the whole "
        "encoder; unset: full for static, else adapter",
    )
    epochs: int | None = Field(
        None,
        ge=0,
        description="passes over the instances; 0: none; unset: --max-steps, --max-seconds, or 15 (adapter), 3 (full), "
        "20 (static)",
    )
    max_steps: int = Field(
        0, ge=0, description="maximum number of optimizer steps, which can be reached before --epochs; 0: no limit"
    )
    max_seconds: float = Field(
        0, ge=0, description="maximum training time in seconds, at whose end the learning rate is 0; 0: no limit"
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        description="number of queries in a step; unset: 256 for an adapter, 128 for full, 1,024 for static, "
        "at most all instances",
    )
    learning_rate: Positive | None = Field(
        None, description="peak learning rate of AdamW; unset: 1e-3 for an adapter or static, 1e-4 for full"
    )
    propensity: Propensity = (0.55, 1.5)
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device for training and encoding")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="precision of matrix products in training; auto: bf16 on a GPU, fp32 on a CPU; tf32: GPU only",
    )

    @property
    def trained(self) -> TrainedPart:
        """The trained part of the encoder."""
        return self.train or ("full" if self.encoder == STATIC else "adapter")


class SharedTrainSettings(TrainingInputs):
    """The flags of `recollect train` that all methods share."""

    preset: str | None = Field(
        None,
        description="settings of a published experiment, such as rae/lf-amazontitles-131k; other flags override them",
    )
    scale: float = Field(
        1,
        gt=0,
        le=1,
        description="factor on batch, epochs and steps of --preset; below 1, a static encoder reads short texts",
    )
    query_encoder: Literal["same", "static"] = Field(
        "same", description="encoder of queries: same: the run's encoder; static: token vectors distilled from it"
    )
    lora: int = Field(
        0, ge=0, description="rank of LoRA matrices, which alone are trained (needs the extra `lora`); 0: all weights"
    )
    method: MethodName = Field("rae", description="training method: loss, pool of keys, and head above the encoder")
    head_learning_rate: Positive | None = Field(
        None, description="peak learning rate of a head's networks; unset: 2 times the encoder's, or the adapter's"
    )
    table_learning_rate: Positive | None = Field(
        None,
        description="peak learning rate of a head's vectors of labels; unset: 10 times the encoder's, or the adapter's",
    )
    warmup: float = Field(
        0.1,
        ge=0,
        description="part of the training in which the learning rate rises: a share of the steps (below 1), or steps",
    )
    weight_decay: float = Field(
        0.01,
        ge=0,
        description="weight decay of matrices; norms, biases, and tables of tokens or free vectors have none",
    )
    clip_norm: float = Field(
        1, ge=0, description="maximum length of the gradient, to which longer ones are cut; 0: any"
    )
    temperature: float | None = Field(
        None,
        gt=0,
        description="tau of the loss; unset: the method's default, from 0.04 to 0.056; prime and ngame have no tau",
    )
    normalise: CliImplicitFlag[bool] = Field(
        True, description="make all vectors unit vectors; without: vectors keep their lengths, and tau is 1 if unset"
    )
    embedding_dropout: float = Field(
        0, ge=0, lt=1, description="dropout on the encoder's vectors in training, before they are normalised"
    )
    positives: int | None = Field(
        None,
        ge=0,
        description="true labels drawn for a query each time it is in a batch; 0: all; unset: the method's default",
    )
    positive_sampling: Literal["uniform", "propensity"] | None = Field(
        None,
        description="draw true labels uniformly, or rare labels more often (propensity); unset: propensity for prime",
    )
    hard_negatives: Annotated[int, Field(ge=0)] | Literal["all"] | None = Field(
        None,
        description="mined negatives of a query, or all: every label; unset: the method's default "
        "(all for dexml, softtopk, bce and ova)",
    )
    mine_from: int = Field(0, ge=0, description="first epoch with hard negatives")
    mine_every: int = Field(
        0, ge=0, description="steps between two minings of hard negatives; 0: --mine-every-epochs decides"
    )
    mine_every_epochs: int = Field(1, ge=1, description="epochs between two minings of hard negatives")
    mine_top: int = Field(
        50, ge=1, description="number of nearest labels of an instance from which its negatives are drawn"
    )
    clusters: int | None = Field(
        None,
        ge=0,
        description="clusters of similar queries that form batches; 0: random batches; unset: the method's default",
    )
    cluster_from: int = Field(
        0, ge=0, description="first epoch with clustered batches; an untrained encoder needs random batches first"
    )
    cluster_every: int | None = Field(
        None,
        ge=1,
        description="epochs between clusterings, each with half the clusters; unset: a sixth of all epochs, at most 5",
    )
    cluster_double_at: Annotated[list[Annotated[int, Field(ge=0)]], *Listed] = Field(
        [], description="epochs at which the number of clusters halves, such as 25,50,75; unset: at every clustering"
    )
    micro_batch: int = Field(
        0, ge=0, description="number of texts that the encoder processes at once (gradient cache); 0: as memory allows"
    )
    validation_fraction: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="share of the train split held out from training, at most 4,000 texts, to choose the checkpoint, "
        "tune, rank and calibrate; unset: 0.05, but at least 600 texts or, if these are too many, a fifth",
    )
    validate_every: int = Field(
        0, ge=0, description="steps between two validations, each of which encodes all texts; 0: one epoch"
    )
    validate_lambda: Annotated[list[Share], *Listed, NotEmpty] = Field(
        list(VALIDATE_LAMBDA), description="values of lambda at which checkpoints are compared; the best one counts"
    )
    seed: int = Field(0, ge=0, description="seed of all random draws")
    label_inputs: Literal["text", "enriched"] | None = Field(
        None,
        description="input of an adapter for a label: text vector (prime, ngame, ova), or mean with its instances",
    )
    key_dtype: Literal["float32", "float16"] = Field("float32", description="data type of stored keys")
    vectors: Path | None = Field(
        None,
        description="run with the same encoder, whose vectors are reused; only other texts are encoded",
    )
    from_: Path | None = Field(
        None,
        alias="from",
        description="run to start from: its checkpoint, lengths, pooling and trained part; a training makes a new head",
    )
    tune: Literal["auto", "yes", "no"] = Field(
        "auto",
        description="choose the memory's lambda on held-out instances, as `recollect tune` does; auto: only for prime",
    )
    rank: RankChoice = "no"
    save_minutes: float = Field(5, ge=0, description="minutes between two saves of the training state")
    best: CliImplicitFlag[bool] = Field(
        False,
        description="train an adapter and a static encoder, compare them with no training, "
        "and keep the best, with a ranker",
    )
    minutes: Positive = Field(10, description="time limit of --best in minutes")
    resume: CliImplicitFlag[bool] = Field(False, description="continue the unfinished training of the run folder")
    overwrite: CliImplicitFlag[bool] = Field(False, description="replace the contents of the run folder")

    def tau(self, default: float | None) -> float:
        """Tau of the loss, given the method's default; 1 without normalisation and for a method without tau."""
        return self.temperature or (default if self.normalise else None) or 1.0


def _without_psp(settings: TuneSettings) -> str | None:
    return None if settings.metric.startswith("PSP") or settings.rank != "no" else f"--metric {settings.metric}"


class TuneSettings(Settings):
    """Choose lambda, tau, b and the label keys' alpha on held-out instances, as the new defaults of the memory."""

    read_if = (ReadIf(("propensity",), "--metric PSP@k, or --rank", _without_psp),)
    _refuse_unread = model_validator(mode="after")(refuse_unread)

    run: CliPositionalArg[Path] = Field(description="run folder, as `recollect train` wrote it")
    metric: Metric = Field("nDCG@5", description="metric to maximise")
    queries: int = Field(2_000, ge=1, description="maximum number of held-out instances to use as queries")
    lambda_: Annotated[list[Share], *Listed, NotEmpty] = Field(
        [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1],
        alias="lambda",
        description="values of lambda to try",
    )
    temperature: Annotated[list[Positive], *Listed, NotEmpty] = Field(
        [0.02, 0.03, 0.04, 0.05, 0.07, 0.1],
        description="values of tau, the temperature of the answers, that tuning tries",
    )
    top_b: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], *Listed, NotEmpty] = Field(
        [25, 50, 100, 200, 400], description="values of b, the number of nearest keys, to try"
    )
    label_key_alpha: Annotated[list[Share], *Listed, NotEmpty] = Field(
        [0, 0.25, 0.5, 0.75], description="weights of the instances in a label's key to try; 0: text alone"
    )
    propensity: Propensity = (0.55, 1.5)
    rank: RankChoice = "no"
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="device of the search")] = "cpu"
    seed: int = Field(0, ge=0, description="seed of the random choice of queries")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON instead of the table")
