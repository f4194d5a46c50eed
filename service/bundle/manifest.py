"""The manifest: what a bundle is, how it was made, and the SHA-256 of every file it may be opened with.

As it answers for every other file, its own signature, in `manifest.sig`, signs them all.
"""

from __future__ import annotations

import json
import re
import stat
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import BundleError, UnknownVersionError, opening

if TYPE_CHECKING:  # requests share this module's types, and `--help` must not load cryptography
    from service.bundle.signing import VerifyKey

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"


def table_files(name: str) -> tuple[str, str]:
    """The files of a table of strings: their UTF-8, and where each starts."""
    return f"{name}.utf8.npy", f"{name}.offsets.npy"


# Every file of a bundle beside its manifest and signature: none may lack, and no other may be there.
BUNDLE_FILES: frozenset[str] = frozenset(
    {
        "encoder.onnx",
        "tokenizer.json",
        "golden.json",
        "instance_keys.faiss",
        "label_keys.faiss",
        "value_indptr.npy",
        "value_indices.npy",
        "voter_indptr.npy",
        "voter_indices.npy",
        "label_counts.npy",
        "label_order.npy",
        *table_files("label_uids"),
        *table_files("label_texts"),
        *table_files("instance_uids"),
        *table_files("instance_texts"),
    }
)

# How large a file may be that is read whole instead of mapped; protobuf, which holds the encoder, ends at 2 GiB too.
_MOST_BYTES = {"tokenizer.json": 64 << 20, "golden.json": 16 << 20, "encoder.onnx": 2 << 30}
_MOST_MANIFEST_BYTES = 1 << 20

# Keys that one search may retrieve: what bounds its cost.
MOST_KEYS = 10_000

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")

Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["fp32", "fp16", "int8"]


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
    precision: Precision
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
        reachable: Share of its keys that a walk over a graph can come to.
    """

    factory: str
    keys: int = Field(ge=1)
    effort: int = Field(ge=0)
    refine: float = Field(ge=1)
    recall: Fraction
    milliseconds: float = Field(ge=0)
    bytes_per_key: float = Field(gt=0)
    reachable: Fraction = 1


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

    `metrics`, `curves`, all points between which an index was chosen, and `checks`, what was held against a bound, were
    measured when the bundle was built.
    """

    format_version: Literal[3]
    version: str
    created: datetime
    counts: Counts
    dim: int = Field(ge=1)
    encoder: EncoderInfo
    index: Indexes
    defaults: Defaults
    metrics: dict[str, float]
    curves: dict[str, list[Point]] = {}
    checks: list[Check] = []
    files: dict[str, FileInfo]

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files.values())


def is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None


def check_version(version: str) -> str:
    """A version's name: letters, digits, `_` and `-`, so that it can never lead out of the store.

    Raises:
        UnknownVersionError: If it is anything else.
    """
    if not is_version(version):
        raise UnknownVersionError(
            f"version {version[:80]!r}: expected letters, digits, '_' and '-', as `recollect versions` lists them"
        )
    return version


def require_file(path: Path) -> None:
    """Refuse a bundle's file that is not there, or that is no file of the bundle's own, as a link is.

    Raises:
        BundleError: Naming it.
    """
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise BundleError(
            f"{path}: expected a file of the bundle, found: {error.strerror}; build the bundle again"
        ) from None
    if not stat.S_ISREG(mode):
        found = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise BundleError(f"{path}: expected a file of the bundle, found {found}; build the bundle again")


def read_small(path: Path, most_bytes: int) -> bytes:
    """The content of one of a bundle's small files.

    Raises:
        BundleError: If it is not there, a link, or larger.
    """
    require_file(path)
    with opening(path), path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise BundleError(f"{path}: expected at most {most_bytes:,} bytes, found more; build the bundle again")
    return content


def read_manifest(folder: Path, verify_key: VerifyKey | None = None) -> Manifest:
    """Read and check a bundle's manifest.

    It is read once: with a key, what is parsed are the very bytes whose signature was right.

    Raises:
        BundleError: If it is missing, not signed by the key's owner, no manifest, of an unknown format, or names
            files that no bundle has.
    """
    path = folder / MANIFEST
    signed = read_small(path, _MOST_MANIFEST_BYTES)
    if verify_key is not None:
        verify_key.check(folder, signed)
    try:
        content = json.loads(signed)
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
    for name, most in _MOST_BYTES.items():
        if (size := manifest.files[name].size) > most:
            raise BundleError(
                f"{folder / name}: expected at most {most:,} bytes, manifest says {size:,}; build it again"
            )
    return manifest
