"""Settings of the index builder. Each field declares an environment variable, a flag, a default and a help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, model_validator
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.core.bundle.manifest import Precision
from recollect.core.options import Share, Temperature, TopB
from recollect.core.settings import (
    ConnectionSettings,
    Device,
    EngineSettings,
    Listed,
    Location,
    ReadIf,
    RerankerSettings,
    ServiceSettings,
    Settings,
    refuse_unread,
)
from recollect.trainer.methods import METHODS, MethodName
from recollect.trainer.modes import OF_ENCODER
from recollect.trainer.settings import DatasetSettings, Metric, NotEmpty, Propensity, TrainingInputs

Lexical = Literal["on", "off", "auto"]


def _check_unique(values: list[str] | list[int]) -> list[str] | list[int]:
    if len(set(values)) < len(values):
        raise ValueError("each value once")
    return values


# An empty value means no methods, because a comparison may consist of variants only.
_EmptyAllowed = BeforeValidator(lambda value: [] if value == "" else value)


def _without_graph(settings: PublishSettings) -> str | None:
    return None if "hnsw" in settings.index.lower() else f"--index {settings.index}"


def _without_links(settings: PublishSettings) -> str | None:
    """A factory string states the number of links itself."""
    return None if settings.index.lower() == "hnsw" else f"--index {settings.index}"


def _without_gate(settings: PublishSettings) -> str | None:
    return None if settings.gate_dataset else "none"


def _without_cache(settings: PublishSettings | EvaluateSettings) -> str | None:
    """A store that is a folder needs no cache, unless verified bundles are copied."""
    is_cached = "://" in str(settings.store) or getattr(settings, "verify_key", None)
    return None if is_cached else f"the folder {settings.store}"


_OF_CACHE = ReadIf(("bundle_cache",), "a store at a URL, or --verify-key", _without_cache)


class PublishSettings(ConnectionSettings):
    """Settings of the verbs that publish a bundle: its indexes, its checks and its signature."""

    read_if: ClassVar[tuple[ReadIf, ...]] = (
        ReadIf(("hnsw_m",), "--index hnsw", _without_links),
        ReadIf(
            ("hnsw_ef_construction", "hnsw_ef_search"), "--index hnsw or a factory string with HNSW", _without_graph
        ),
        ReadIf(("max_drop",), "--gate-dataset", _without_gate),
        _OF_CACHE,
    )
    _refuse_unread = model_validator(mode="after")(refuse_unread)

    store: Location = Field(description="bundle store to publish in: a folder or a URL; created if absent")
    bundle_cache: Path | None = Field(
        None, description="folder that caches bundles of a store at a URL; default: ~/.cache/recollect"
    )
    index: str = Field(
        "auto",
        min_length=1,
        description="auto (chosen by measurement), flat (exact), ivf (inverted lists), hnsw (graph), or a faiss "
        "factory string",
    )
    hnsw_m: int | None = Field(
        None, ge=2, le=2048, description="with --index hnsw: links of a key to others (M); default: 32"
    )
    hnsw_ef_construction: int | None = Field(
        None, ge=1, description="effort that builds a graph on a CPU (efConstruction); default: 100, or 200 with Milvus"
    )
    hnsw_ef_search: int | None = Field(
        None,
        ge=1,
        description="effort that searches a graph (efSearch); default: the least one that reaches the recall",
    )
    recall_target: float = Field(
        0.98,
        gt=0,
        le=1,
        description="least recall of each index: the share of the exact top b keys that a search must find, with the "
        "memory's default b",
    )
    memory_budget: ByteSize | None = Field(
        None, gt=0, description="largest size of both indexes together, for example 2GB"
    )
    latency_budget_ms: float | None = Field(
        None, gt=0, description="longest search time of a query on one thread, in milliseconds"
    )
    sign: Path | None = Field(
        None, description="Ed25519 private key (PEM, no passphrase) that signs the bundle; default: no signature"
    )
    gate_dataset: Path | None = Field(
        None,
        description="dataset; the bundle and the current version are compared on its test split; see --max-drop",
    )
    max_drop: float = Field(
        0.5, ge=0, description="points of P@1, P@5, nDCG@5 and R@100 that the bundle may lose on the gate dataset"
    )
    force: CliImplicitFlag[bool] = Field(
        False, description="publish even if a check fails; the manifest records the failure"
    )
    activate: CliImplicitFlag[bool] = Field(False, description="make the new version current")
    threads: int = Field(0, ge=0, description="threads that build; 0: one for each core")
    device: Device = Field("cpu", description="device that builds indexes: cpu, cuda, or auto (cuda if there is a GPU)")


def _without_milvus(settings: BuildSettings) -> str | None:
    """The current version, which the gate measures, may have its keys in Milvus."""
    return _without_gate(settings) and (None if settings.engine == "milvus" else f"--engine {settings.engine}")


class BuildSettings(PublishSettings):
    """Build a bundle from a run, check it and publish it. The last line of the output is the version of the bundle."""

    read_if = (
        *PublishSettings.read_if,
        ReadIf(tuple(EngineSettings.model_fields), "--engine milvus, or --gate-dataset", _without_milvus),
        ReadIf(
            ("memory_budget",),
            "--engine faiss",
            lambda settings: "--engine milvus" if settings.engine == "milvus" else None,
        ),
    )

    run: CliPositionalArg[Path] = Field(
        description="run folder, written by `recollect train`, or hf://user/name[@revision] on the Hugging Face hub"
    )
    precision: Precision = Field(
        "fp32", description="precision of the query encoder: fp32, fp16 (for GPUs) or int8 (for CPUs)"
    )
    lexical: Lexical = Field(
        "auto",
        description="index of words, whose votes are added to those of the vectors: on, off, or auto (on if it gains "
        "nDCG@5 on left-out instances)",
    )
    rank: Literal["auto", "off"] = Field(
        "auto", description="ranker of the run, fitted by `recollect rank`: auto (used if the run has one), or off"
    )
    rerank: CliImplicitFlag[bool] = Field(
        False,
        description="let the cross-encoder of the run read every query that does not say otherwise; default: only "
        "queries that ask for it",
    )
    engine: Literal["faiss", "milvus"] = Field(
        "faiss",
        description="engine of the keys: faiss (files of the bundle), or milvus (collections of the server "
        "--engine-uri, for memories that exceed one machine); with milvus, --index is auto, FLAT, IVF_SQ8, HNSW or "
        "DISKANN",
    )
    memory_sequence: int = Field(
        0,
        ge=0,
        description="last live entry of the store that the dataset of the run contains, printed by `recollect export`; "
        "later entries are applied to the bundle",
    )


class PushSettings(Settings):
    """Upload a run to the Hugging Face hub, with a model card. The token comes from HF_TOKEN."""

    run: CliPositionalArg[Path] = Field(description="run folder, written by `recollect train`")
    to: str = Field(description="repository of the hub: user/name; created if absent")
    public: CliImplicitFlag[bool] = Field(
        False, description="create a public repository; everyone can then read the texts of the memory"
    )
    license: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9.+-]+$",
        description="licence that the model card states, such as apache-2.0 or cc-by-4.0",
    )
    evaluation: Path | None = Field(
        None, description="output of `recollect evaluate --json`, whose figures the model card shows"
    )
    dry_run: CliImplicitFlag[bool] = Field(False, description="print the model card, and upload nothing")


class CompactSettings(PublishSettings, ServiceSettings):
    """Publish a bundle with the live memory of a store: the current version's memory, and all live entries.

    Entries that are written meanwhile stay live. The last line of the output is the version.
    """

    store: CliPositionalArg[Location] = Field(description="bundle store: a folder, or a URL such as s3://bucket/store")
    run: Path | None = Field(
        None,
        description="run folder from which the current version was built, or --out of the compaction that built it; "
        "default: the keys are read from the bundle, or its texts are encoded again",
    )
    out: Path | None = Field(
        None,
        description="folder for the new memory, which the next compaction can use as --run; must be absent; default: "
        "a temporary folder",
    )


class RankSettings(RerankerSettings):
    """Fit a ranker of labels on left-out instances, and keep it in the run if it ranks better than the votes."""

    read_if = (
        ReadIf(
            ("minutes", "cross_encoder_base"),
            "--cross-encoder",
            lambda settings: None if settings.cross_encoder else "none",
        ),
        ReadIf(
            ("cross_encoder_candidates",),
            "--cross-encoder or --reranker",
            lambda settings: None if settings.cross_encoder or settings.reranker else "neither",
        ),
        ReadIf(("reranker",), "no --cross-encoder", lambda settings: "one" if settings.cross_encoder else None),
        ReadIf(("reranker_token", "reranker_ms"), "--reranker", lambda settings: None if settings.reranker else "none"),
    )
    _refuse_unread = model_validator(mode="after")(refuse_unread)

    run: CliPositionalArg[Path] = Field(description="run folder, written by `recollect train`")
    metric: Metric = Field("nDCG@5", description="metric that the ranker must gain")
    queries: int = Field(4_000, ge=100, description="maximum number of instances whose candidates are examples")
    lexical: Literal["on", "off"] = Field(
        "on", description="use the words that texts share; such a ranker needs a bundle with a lexical index"
    )
    cross_encoder: CliImplicitFlag[bool] = Field(
        False,
        description="also train a cross-encoder, which reads a text together with its best labels, and keep it if the "
        "ranker gains with it; queries ask for it with `rerank`",
    )
    minutes: float = Field(10, gt=0, le=10_000, description="time to train the cross-encoder")
    cross_encoder_base: str | None = Field(
        None,
        description="BERT encoder from which the cross-encoder starts, as --encoder of `recollect train`; default: the "
        "encoder of the run",
    )
    cross_encoder_candidates: int = Field(
        15, ge=2, le=100, description="number of the ranker's best labels that the cross-encoder or the reranker reads"
    )
    classifier: Literal["auto", "off"] = Field(
        "auto",
        description="auto: with a linear classifier of the words of each label, if it gains two standard errors",
    )
    propensity: Propensity = (0.55, 1.5)
    seed: int = Field(0, ge=0, description="seed of the choice of instances, and of the folds")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON instead of the table")
    threads: int = Field(0, ge=0, description="threads that search and fit; 0: one for each core")


def _as_rows(settings: EvaluateSettings) -> str | None:
    """The flag of a form of output that has the rows of settings alone."""
    return "--csv" if settings.csv else "--latex" if settings.latex else None


class EvaluateSettings(DatasetSettings, ServiceSettings):
    """Measure a bundle on a dataset's test split with the code that serves: one row for each setting, in percent."""

    verb = "evaluate"
    read_if = (
        _OF_CACHE,
        ReadIf(
            ("intervals", "deciles", "wide"),
            "a table, because JSON always has them",
            lambda settings: "--json" if settings.json_ else None,
        ),
        ReadIf(("csv", "latex"), "one form of the output", lambda settings: "--json" if settings.json_ else None),
        ReadIf(("latex",), "one form of the output", lambda settings: "--csv" if settings.csv else None),
        ReadIf(("wide",), "a table, because CSV has all columns", lambda settings: "--csv" if settings.csv else None),
        ReadIf(("deciles",), "the table or --json", _as_rows),
        ReadIf(
            ("by", "compare"), "the table, --json or --report", lambda each: None if each.report else _as_rows(each)
        ),
    )
    _refuse_unread = model_validator(mode="after")(refuse_unread)

    version: str = Field("current", description="version to measure")
    lambda_: Annotated[list[Share], *Listed] = Field(
        [], alias="lambda", description="one or more lambdas, for example 0,0.1,0.5; default: the bundle's default"
    )
    temperature: Annotated[list[Temperature], *Listed] = Field(
        [], description="one or more temperatures (tau); default: the bundle's default"
    )
    top_b: Annotated[list[TopB], *Listed] = Field(
        [], description="one or more numbers of keys (b); default: the bundle's default"
    )
    word_weight: Annotated[list[Share], *Listed] = Field(
        [], description="one or more weights of the votes by words; default: the bundle's default"
    )
    separate_memories: CliImplicitFlag[bool] = Field(
        False,
        description="also measure each setting with one softmax for instances and one for labels (RAE-XMC, Eq. 11)",
    )
    propensity: Propensity = (0.55, 1.5)
    limit: int = Field(0, ge=0, description="use only this number of test texts, from the first one; 0: all texts")
    compare: str | None = Field(
        None,
        description="another version of the store, which is measured on the same texts, with the label frequencies of "
        "--version in PSP and F1; default: no comparison",
    )
    report: Path | None = Field(
        None,
        description="folder for `report.html`, a page with charts and the hardest texts; an earlier page in it is "
        "replaced; default: no page",
    )
    intervals: CliImplicitFlag[bool] = Field(
        False, description="also print the 95% confidence intervals (bootstrap over the test texts)"
    )
    deciles: CliImplicitFlag[bool] = Field(
        False,
        description="also print the metrics of ten groups of labels by frequency: with equally many labels, and with "
        "equally many training pairs",
    )
    by: str | None = Field(
        None,
        description="also print the metrics of the labels with each of the most frequent values of a field, for "
        "example groups; default: no such table",
    )
    wide: CliImplicitFlag[bool] = Field(False, description="print all columns, also if a line has over 100 characters")
    csv: CliImplicitFlag[bool] = Field(False, description="print all rows and columns as CSV")
    latex: CliImplicitFlag[bool] = Field(False, description="print the table for LaTeX")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON")
    threads: int = Field(0, ge=0, description="threads that search and encode; 0: one for each core")
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="device that encodes and searches")] = "cpu"


class CompareSettings(TrainingInputs):
    """Train methods with the same dataset, encoder, budget and seeds, measure them, and write a report."""

    verb = "compare"
    read_if = OF_ENCODER
    _refuse_unread = model_validator(mode="after")(refuse_unread)

    out: Path = Field(description="folder for the runs and the report; an interrupted comparison in it continues")
    methods: Annotated[list[MethodName], AfterValidator(_check_unique), *Listed, _EmptyAllowed] = Field(
        list(METHODS), description="one or more methods, for example rae,dexml"
    )
    variants: Path | None = Field(
        None,
        description="TOML file with one table for each variant: flags of `recollect train` with underscores, such as "
        "clusters = 0",
    )
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], AfterValidator(_check_unique), *Listed, NotEmpty] = Field(
        [0], description="one or more seeds; each method is trained once with each seed"
    )
    epochs: int | None = Field(
        None,
        ge=1,
        description="passes over the instances; default: set by --max-steps or --max-seconds, else 15 for an adapter, "
        "3 for full and 20 for static",
    )
    metric: Metric = Field(
        "nDCG@5", description="metric that tuning maximises and that decides the best two contestants"
    )
    limit: int = Field(0, ge=0, description="use only this number of test texts, from the first one; 0: all texts")
    json_: CliImplicitFlag[bool] = Field(False, alias="json", description="print JSON")
