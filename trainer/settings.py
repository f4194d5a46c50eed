"""The trainer's settings: environment variable, flag, default and help text of each, declared once.

The flags of `recollect train` alone are in `recollect.trainer.train_flags`, and those of one method are in its module
in `recollect.trainer.methods`. No module with settings imports torch, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.core.settings import Listed, ReadIf, Settings, TableSettings, as_words, refuse_unread
from recollect.trainer.shorthands import SHORTHANDS


def _check_pooling(pooling: str) -> str:
    if pooling != "auto" and not {*pooling.split("+")} <= {*POOLINGS}:
        raise ValueError(f"auto, {', '.join(POOLINGS)}, or several, joined by +")
    return pooling


NotEmpty = Field(min_length=1)
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
EmptyTexts = Literal["refuse", "drop", "keep"]
UnknownLabels = Literal["refuse", "drop"]
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


class DatasetSettings(TableSettings):
    """A dataset, and how it is read: the flags of every verb that reads one.

    Attributes:
        verb: The verb that reads it, for messages.
    """

    verb: ClassVar[str] = "train"

    dataset: CliPositionalArg[Path] = Field(
        description="dataset folder, or a table: .csv, .tsv, .jsonl (each also .gz) or .parquet"
    )
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
    labels: Path | None = Field(
        None,
        description="table of the labels of a table, with the columns uid, text and fields; unset: --label-column has "
        "the texts of the labels",
    )
    test_fraction: float = Field(
        0,
        ge=0,
        lt=1,
        description="share of the texts that is the test split, by a hash of the text; 0: a file of its own",
    )
    _frame: Any = PrivateAttr(None)

    @property
    def frame(self) -> Any:
        """The data frame that is read instead of a file; None if `dataset` is a path."""
        return self._frame

    def with_frame(self, frame: Any) -> Self:
        """A copy that reads a data frame. `dataset` is its name in messages."""
        copy = self.model_copy()
        copy._frame = frame
        return copy

    def command(self) -> list[str]:
        """The words of this command without flags of tables, for messages that show one; empty in Python."""
        if self.frame is not None:
            return []
        given = {
            name: value
            for name, field in type(self).model_fields.items()
            if name not in ("dataset", *TableSettings.model_fields)
            and (value := getattr(self, name)) != field.default
            and not (name == "store" and "://" in str(value))  # a URL may contain a password
        }
        return ["recollect", self.verb, str(self.dataset), *as_words(given)]


class TrainingInputs(DatasetSettings):
    """The dataset, the encoder and the length of a training: the flags that `train` and `compare` share."""

    out: Path = Field(description="run folder to write")
    encoder: str = Field(
        "minilm",
        description="Hugging Face encoder by name or folder, or a run's checkpoint/; minilm: packaged, for English; "
        + "".join(f"{name}: {model.source} ({model.about}); " for name, model in SHORTHANDS.items())
        + "static: token vectors; http://HOST/v1#MODEL: a server with OpenAI's route /embeddings",
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
        description="precision of matrix products; auto: bf16 to train on a GPU, fp32 to train on a CPU, and bf16 for "
        "a CPU to encode a memory if this is faster and keeps the vectors; tf32: GPU only",
    )

    @property
    def trained(self) -> TrainedPart:
        """The trained part of the encoder."""
        return self.train or ("full" if self.encoder == STATIC else "adapter")


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
