"""The manifest of a bundle: format, sizes, default options, measurements, and the SHA-256 of every other file.

Because the manifest contains the SHA-256 of every other file, its signature covers the whole bundle.
"""

from __future__ import annotations

import functools
import itertools
import re
from array import array
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from recollect.core.bundle.files import (
    CLASSIFIER_FILES,
    CROSS_ENCODER,
    CROSS_RANKER,
    CROSS_TOKENIZER,
    ENCODER_SERVER,
    FIELD_FILES,
    LEXICAL_FILES,
    MANIFEST,
    RANKER_FILES,
    STEM_FILES,
    TOKENIZER,
    expected_files,
)
from recollect.core.errors import BundleError, UnknownVersionError

FORMAT_VERSION = 3

# Maximum sizes of the files that are read completely instead of being mapped into memory. Protobuf, the format of the
# encoder, allows 2 GiB.
_MAX_BYTES = {
    TOKENIZER: 64 << 20,
    ENCODER_SERVER: 1 << 20,
    "golden.json": 16 << 20,
    "encoder.onnx": 2 << 30,
    CROSS_TOKENIZER: 64 << 20,
    CROSS_ENCODER: 2 << 30,
}

# Maximum number of keys that one search may retrieve. It limits the cost of a search.
MOST_KEYS = 10_000

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")

Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["fp32", "fp16", "int8"]
# The order of the labels in an answer, highest first; `macro` is `recollect/core/reranker/macro.py`.
Order = Literal["score", "probability", "macro"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Counts(_Section):
    """Numbers of instances, labels and pairs in a bundle; a pair is an instance and one of its labels."""

    instances: int = Field(ge=1)
    labels: int = Field(ge=1)
    pairs: int = Field(ge=0)


class EncoderInfo(_Section):
    """The encoder of a bundle; it truncates a query or instance after `max_length` tokens.

    Attributes:
        precision: That of the graph; `fp16` with a server, whose vectors vary with its batches as much.
        max_length: Number of tokens after which a query or instance is truncated; None if a server decides it.
        label_max_length: Number of tokens after which the text of a label is truncated; None: `max_length`.
        kind: `transformer`, `static` for a table of token vectors, or `server` for a server that gives the vectors.
        teacher: Name of the encoder of the keys, if this encoder was distilled from it. Otherwise one encoder gives
            the vectors of queries and keys.
        normalised: Whether vectors are unit vectors. Otherwise they keep their lengths.
        query_prompt: Text that the encoder reads before each query and instance.
        label_prompt: Text that the encoder reads before each label.
    """

    name: str
    pooling: str = Field(min_length=1)
    precision: Precision
    max_length: int | None = Field(ge=1)
    label_max_length: int | None = Field(None, ge=1)
    pad_id: int = Field(ge=0)
    kind: Literal["transformer", "static", "server"] = "transformer"
    teacher: str | None = None
    normalised: bool = True
    query_prompt: str = ""
    label_prompt: str = ""

    @property
    def tokens(self) -> int:
        """`max_length` of an encoder with a tokenizer."""
        assert self.max_length is not None
        return self.max_length


class IndexInfo(_Section):
    """One index of faiss or Milvus.

    Attributes:
        kind: `flat` (a search compares all codes), `ivf` (inverted lists), `hnsw` (a graph) or `diskann` (a graph on
            the disks of Milvus).
        factory: The faiss factory string of the index, or Milvus's type of the index.
        keys: Number of keys in the index.
        effort: `efSearch` of a graph, `nprobe` of inverted lists, `search_list` of DiskANN, 0 for a flat index.
        refine: Number of candidates for each key to retrieve; a refining index compares the candidates again with more
            exact codes.
    """

    kind: Literal["flat", "ivf", "hnsw", "diskann"]
    factory: str = ""
    keys: int = Field(ge=1)
    effort: int = Field(0, ge=0)
    refine: float = Field(1, ge=1)


class Point(_Section):
    """One measurement of one index: its recall and cost at one search effort.

    Attributes:
        factory: The faiss factory string of the index.
        keys: Number of keys in the index.
        effort: Search effort, as in `IndexInfo`.
        refine: Number of refined candidates, as in `IndexInfo`.
        recall: Fraction of the exact top b keys that the search found.
        milliseconds: Median time of one query on one thread.
        bytes_per_key: Size of the index file divided by the number of keys.
        reachable: Fraction of the keys that a search of the graph can reach.
    """

    factory: str
    keys: int = Field(ge=1)
    effort: int = Field(ge=0)
    refine: float = Field(ge=1)
    recall: Fraction
    milliseconds: float = Field(ge=0)
    bytes_per_key: float = Field(gt=0)
    reachable: Fraction = 1


class Check(_Section):
    """A quality check that a bundle must pass before it is published: a measured number and its bounds.

    A number or a bound that does not exist is None.
    """

    name: str
    found: float | None
    least: float | None = None
    most: float | None = None
    passed: bool


CollectionName = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]{0,254}$")]


class Engine(_Section):
    """The engine that holds the keys of a bundle, instead of files of the bundle.

    Attributes:
        name: `milvus`.
        instances: Name of the collection of the instance keys.
        labels: Name of the collection of the label keys.
    """

    name: Literal["milvus"]
    instances: CollectionName
    labels: CollectionName


class Indexes(_Section):
    instances: IndexInfo
    labels: IndexInfo


class Platt(_Section):
    """A calibration: probability = 1 / (1 + exp(-(slope * logit + intercept)))."""

    method: Literal["platt"] = "platt"
    slope: float = Field(gt=0)
    intercept: float


class Isotonic(_Section):
    """A calibration: a table of rising logits and their probabilities, which never fall."""

    method: Literal["isotonic"] = "isotonic"
    logits: tuple[float, ...] = Field(min_length=1, max_length=4096)
    probabilities: tuple[Fraction, ...]

    @functools.cached_property
    def columns(self) -> tuple[array[float], array[float]]:
        """The logits and the probabilities as arrays, which numpy reads without a copy."""
        return array("d", self.logits), array("d", self.probabilities)

    @model_validator(mode="after")
    def _check_rising(self) -> Isotonic:
        if len(self.logits) != len(self.probabilities):
            raise ValueError(f"expected {len(self.logits)} probabilities, found {len(self.probabilities)}")
        if any(a >= b for a, b in itertools.pairwise(self.logits)):
            raise ValueError("expected rising logits")
        if any(a > b for a, b in itertools.pairwise(self.probabilities)):
            raise ValueError("expected probabilities that never fall")
        return self


class Coverage(_Section):
    """At least this share of the true labels of the held-out texts has at least this probability."""

    share: Fraction
    probability: Fraction


class Probabilities(_Section):
    """The calibration of a bundle, and measurements on held-out texts with the default options.

    Attributes:
        calibration: Converts logits to probabilities.
        first_calibration: Converts the logit of the first label of an answer instead; None if `calibration` is as good.
        texts: Number of held-out texts.
        metrics: `ECE@1`, `ECE@5` and `Brier` of texts that took no part in the fit of their calibration (cross-fitted).
        mean_top_probability: Mean probability of the most probable label of a text.
        coverage: Least probabilities of given shares of the true labels. A share that the bundle does not find is left
            out.
    """

    calibration: Annotated[Platt | Isotonic, Field(discriminator="method")]
    first_calibration: Annotated[Platt | Isotonic | None, Field(discriminator="method")] = None
    texts: int = Field(ge=1)
    metrics: dict[str, float]
    mean_top_probability: Fraction
    coverage: list[Coverage] = []


class Defaults(_Section):
    """Options for requests that do not set their own options.

    `word_weight` is the share of the lexical index in a score; it has no effect in a bundle without a lexical index.
    `tail_weight` is that of the order macro; None if no held-out texts chose it.
    `rerank` needs a cross-encoder.
    """

    lambda_: Fraction = Field(alias="lambda")
    temperature: float = Field(gt=0)
    top_b: int = Field(ge=1)
    top_k: int = Field(ge=1)
    word_weight: Fraction = 0.0
    order: Order = "score"
    tail_weight: Fraction | None = None
    rerank: bool = False


class FileInfo(_Section):
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Manifest(_Section):
    """The content of `manifest.json`.

    Attributes:
        engine: The engine of the keys; None if they are in files of the bundle.
        probabilities: The calibration; None if the bundle gives no probabilities.
        metrics: Quality figures, measured when the bundle was built.
        curves: All measurements from which the build chose the index.
        checks: Quality checks of the build.
        dataset: The layout of the dataset and the flags with which it was read; empty if they are not known.
        memory_sequence: The last entry of the store's live memory that the bundle contains; 0 if it contains none.
        files: SHA-256 and size of every file.
    """

    format_version: Literal[3]
    version: str
    created: datetime
    counts: Counts
    dim: int = Field(ge=1)
    encoder: EncoderInfo
    index: Indexes
    engine: Engine | None = None
    defaults: Defaults
    probabilities: Probabilities | None = None
    metrics: dict[str, float]
    curves: dict[str, list[Point]] = {}
    checks: list[Check] = []
    dataset: dict[str, str | float | list[str] | None] = {}
    memory_sequence: int = Field(0, ge=0)
    files: dict[str, FileInfo]

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def encoder_files(self) -> tuple[str, str]:
        """The graph of the encoder, and the file with its inputs: a tokenizer, or the server of the vectors."""
        return "encoder.onnx", ENCODER_SERVER if self.encoder.kind == "server" else TOKENIZER

    @property
    def has_lexical_index(self) -> bool:
        return self.files.keys() >= LEXICAL_FILES

    @property
    def has_ranker(self) -> bool:
        return self.files.keys() >= RANKER_FILES

    @property
    def has_cross_encoder(self) -> bool:
        return self.files.keys() >= RANKER_FILES | {CROSS_RANKER}

    @property
    def has_stems(self) -> bool:
        """Whether the ranker can read stems of names, and labels that occur together."""
        return self.files.keys() >= STEM_FILES

    @property
    def has_classifier(self) -> bool:
        return self.files.keys() >= {*CLASSIFIER_FILES}

    @property
    def has_label_fields(self) -> bool:
        return self.files.keys() >= FIELD_FILES


def is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None


def check_version(version: str) -> str:
    """Return `version` if it has only letters, digits, `_` and `-`, so that it cannot be a path out of the store."""
    if not is_version(version):
        raise UnknownVersionError(
            f"version {version[:80]!r}: expected letters, digits, '_' and '-', as `recollect versions` lists them"
        )
    return version


def parse_manifest(content: bytes, folder: str) -> Manifest:
    """Parse and check the content of `manifest.json`; `folder` names the bundle in error messages."""
    path = f"{folder}/{MANIFEST}"
    try:
        parsed = from_json(content)
    except ValueError as error:
        raise BundleError(f"{path}: expected JSON, found: {error}; build the bundle again") from None
    format_version = parsed.get("format_version") if isinstance(parsed, dict) else None
    if format_version != FORMAT_VERSION:
        raise BundleError(
            f"{path}: expected format_version {FORMAT_VERSION}, found {format_version!r}; "
            "build the bundle with this release (`recollect build RUN --store STORE --activate`), or serve it with the "
            "release that built it"
        )
    try:
        manifest = Manifest.model_validate(parsed)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise BundleError(f"{path}: {field}: {problem['msg']}; build the bundle again") from None
    if manifest.files.keys() != (expected := expected_files(manifest.files.keys(), manifest.engine is not None)):
        wrong = sorted(manifest.files.keys() ^ expected)
        raise BundleError(
            f"{path}: files: expected exactly the files of a bundle; missing or unexpected: {', '.join(wrong)}"
        )
    if manifest.encoder_files[1] not in manifest.files:
        raise BundleError(
            f"{path}: encoder.kind: expected the file {manifest.encoder_files[1]} beside it, found none; build the "
            "bundle again"
        )
    if manifest.encoder.kind != "server" and manifest.encoder.max_length is None:
        raise BundleError(f"{path}: encoder.max_length: expected a number, found none; build the bundle again")
    for name, max_bytes in _MAX_BYTES.items():
        if name in manifest.files and (size := manifest.files[name].size) > max_bytes:
            raise BundleError(
                f"{folder}/{name}: expected at most {max_bytes:,} bytes, manifest says {size:,}; build it again"
            )
    return manifest
