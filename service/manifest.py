"""The manifest: what a bundle is, how it was made, and the SHA-256 of every file it may be opened with."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import BundleError, StoreError
from service.strings import table_files

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

# Every file of a bundle beside its manifest: no other is opened, none may lack.
BUNDLE_FILES: frozenset[str] = frozenset(
    {
        "encoder.onnx",
        "tokenizer.json",
        "instance_keys.faiss",
        "label_keys.faiss",
        "value_indptr.npy",
        "value_indices.npy",
        "label_counts.npy",
        "label_order.npy",
        *table_files("label_uids"),
        *table_files("label_texts"),
        *table_files("instance_uids"),
        *table_files("instance_texts"),
    }
)

# Keys that one query may retrieve: what bounds the cost of an answer.
MOST_KEYS = 10_000

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_MANIFEST_LIMIT_BYTES = 1 << 20

Fraction = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class Counts(_Part):
    """Sizes of the memory; `pairs` counts the votes of instances."""

    instances: int = Field(ge=1)
    labels: int = Field(ge=1)
    pairs: int = Field(ge=0)


class EncoderInfo(_Part):
    """The encoder, and `max_length`, the tokens at which a query is cut."""

    name: str
    pooling: Literal["mean", "cls"]
    precision: Literal["fp32", "int8"]
    max_length: int = Field(ge=1)
    pad_id: int = Field(ge=0)


class IndexInfo(_Part):
    """One faiss index.

    Attributes:
        kind: What a search walks: all codes, inverted lists or a graph.
        factory: faiss's own name for the whole of it.
        keys: How many it holds.
        effort: efSearch of a graph, nprobe of inverted lists, 0 where all codes are looked at.
        refine: Candidates that are compared again, more exactly, for each key asked for; where the index refines.
    """

    kind: Literal["flat", "ivf", "hnsw"]
    factory: str = ""
    keys: int = Field(ge=1)
    effort: int = Field(0, ge=0)
    refine: float = Field(1, ge=1)


class Point(_Part):
    """What was measured of one index at one effort.

    Attributes:
        factory: faiss's name for the index.
        keys: How many it held.
        effort: As in `IndexInfo`.
        refine: As in `IndexInfo`.
        recall: Share of the exact top b that it found.
        milliseconds: Median time of a query, alone on one thread.
        bytes_per_key: Size of the index's file over its keys.
    """

    factory: str
    keys: int = Field(ge=1)
    effort: int = Field(ge=0)
    refine: float = Field(ge=1)
    recall: Fraction
    milliseconds: float = Field(ge=0)
    bytes_per_key: float = Field(gt=0)


class Check(_Part):
    """What was measured before publishing, and the least or the most that it may be; None: no number, or no bound."""

    name: str
    found: float | None
    least: float | None = None
    most: float | None = None
    passed: bool


class Indexes(_Part):
    instances: IndexInfo
    labels: IndexInfo


class Defaults(_Part):
    """What a request gets that does not choose."""

    lambda_: Fraction = Field(alias="lambda")
    temperature: float = Field(gt=0)
    top_b: int = Field(ge=1)
    top_k: int = Field(ge=1)


class FileInfo(_Part):
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Manifest(_Part):
    """The whole manifest, as `manifest.json` holds it.

    `metrics` and `curves`, all points between which an index was chosen, were measured when the bundle was built.
    """

    format_version: Literal[1]
    version: str
    created: datetime
    counts: Counts
    dim: int = Field(ge=1)
    encoder: EncoderInfo
    index: Indexes
    defaults: Defaults
    metrics: dict[str, float]
    curves: dict[str, list[Point]] = {}
    files: dict[str, FileInfo]


def is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None


def check_version(version: str) -> str:
    """A version's name: letters, digits, `_` and `-`, so that it can never lead out of the store.

    Raises:
        StoreError: If it is anything else.
    """
    if not is_version(version):
        raise StoreError(
            f"version {version[:80]!r}: expected letters, digits, '_' and '-', as `recollect versions` lists them"
        )
    return version


def read_manifest(folder: Path) -> Manifest:
    """Read and check a bundle's manifest.

    Raises:
        BundleError: If it is missing, no manifest, of an unknown format, or names files that no bundle has.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MANIFEST_LIMIT_BYTES:
            raise BundleError(f"{path}: expected at most {_MANIFEST_LIMIT_BYTES:,} bytes; build the bundle again")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path}: expected a bundle's manifest, found: {error.strerror}; build it again") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: expected JSON, found: {error}; build the bundle again") from None
    found = content.get("format_version") if isinstance(content, dict) else None
    if found != FORMAT_VERSION:
        raise BundleError(
            f"{path}: expected format_version {FORMAT_VERSION}, found {found!r}; "
            "build the bundle with this release of recollect, or serve it with the one that built it"
        )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise BundleError(f"{path}: {field}: {problem['msg']}; build the bundle again") from None
    if manifest.files.keys() != BUNDLE_FILES:
        wrong = sorted(manifest.files.keys() ^ BUNDLE_FILES)
        raise BundleError(f"{path}: files: expected exactly those of a bundle, differs in {', '.join(wrong)}")
    return manifest
