"""Commits: the entries that one write adds to a log, as a file of JSON lines.

    {"format_version": 1, "id": "5f0c...", "first": 11, "count": 2, "seconds": 1764163200.5, "encoder": "9b1d...",
     "dim": 384, "requests": [{"key": "...", "body": "...", "sequence": 12, "answer": {"version": "..."}}]}
    {"kind": "put_label", "uid": "sku-9", "text": "Folding hammock", "vector": "AACAPwAA..."}
    {"kind": "remove_instance", "uid": "q77"}

The first line is the head (here on two lines), then each entry has a line. A vector is the base64 form of its
little-endian float32 numbers. A field with a default can be missing. An unknown field is an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from recollect.core.options import first_problem
from recollect.core.tables.entries import (
    Entry,
    InstanceFields,
    LoggedEntry,
    PutCorrection,
    PutInstance,
    PutLabel,
    Record,
    Remove,
)

FORMAT_VERSION = 1
_FLOAT = np.dtype("<f4")


class EncoderOfCommit(NamedTuple):
    """The encoder that made the vectors of a commit: the SHA-256 of its files as hex digits, and its dimensions."""

    sha256: str
    dim: int


class Answered(Record):
    """A request with a key that a commit has carried out, and its answer.

    Attributes:
        key: Digest of the key, and of the client that chose it.
        body: Digest of the request. A request with the same key and another body is refused.
        sequence: Sequence number of its last entry.
        answer: The other fields of its answer.
    """

    key: str
    body: str
    sequence: int
    answer: dict[str, Any]


class _Head(Record):
    format_version: Literal[1] = 1
    id: str
    first: Annotated[int, Field(ge=1)]
    count: Annotated[int, Field(ge=1)]
    seconds: float
    encoder: str
    dim: Annotated[int, Field(ge=1)]
    requests: list[Answered] = []


class _PutInstance(InstanceFields):
    kind: Literal["put_instance"]
    uid: str
    text: str
    labels: Annotated[list[str], Field(min_length=1)]
    vector: str


class _PutLabel(Record):
    kind: Literal["put_label"]
    uid: str
    text: str
    vector: str
    fields: dict[str, Any] = {}


class _PutCorrection(Record):
    kind: Literal["put_correction"]
    uid: str
    query: str
    label: str
    vector: str


class _Remove(Record):
    kind: Literal["remove_instance", "remove_label", "remove_correction"]
    uid: str


_LINE: TypeAdapter[_PutInstance | _PutLabel | _PutCorrection | _Remove] = TypeAdapter(
    Annotated[_PutInstance | _PutLabel | _PutCorrection | _Remove, Field(discriminator="kind")]
)


@dataclass(frozen=True)
class Commit:
    """A commit of a log.

    Attributes:
        id: A random token. Two logs with other entries have other ids at the same sequence number.
        entries: Its entries, at least one.
        requests: The requests with a key that it has carried out.
        encoder: The encoder of its vectors.
        size_bytes: Size of its file.
    """

    id: str
    entries: list[LoggedEntry]
    requests: list[Answered]
    encoder: EncoderOfCommit
    size_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Time of the write, in seconds since 1970 (UTC)."""
        return self.entries[0].seconds

    @property
    def first(self) -> int:
        return self.entries[0].sequence

    @property
    def last(self) -> int:
        return self.entries[-1].sequence


def number(entries: Sequence[Entry], first: int) -> list[LoggedEntry]:
    """Give entries their sequence numbers, from `first` on, and the present time."""
    now = time.time()
    return [LoggedEntry(first + nth, now, entry) for nth, entry in enumerate(entries)]


def new_commit(entries: Sequence[LoggedEntry], requests: Sequence[Answered], encoder: EncoderOfCommit) -> Commit:
    """A commit of numbered entries."""
    return Commit(secrets.token_hex(16), [*entries], [*requests], encoder)


def encode_commit(commit: Commit) -> bytes:
    """The content of the file of a commit.

    Raises:
        ValueError: If a vector has another shape than the encoder gives, or a number of it is not finite.
    """
    head = _Head(
        id=commit.id,
        first=commit.first,
        count=len(commit.entries),
        seconds=commit.seconds,
        encoder=commit.encoder.sha256,
        dim=commit.encoder.dim,
        requests=commit.requests,
    )
    lines = [head.model_dump(), *(_encode(logged.entry, commit.encoder.dim) for logged in commit.entries)]
    texts = (json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines)
    return "".join(f"{text}\n" for text in texts).encode()


def decode_commit(content: bytes, first: int) -> Commit:
    """Read the content of the file of a commit.

    Args:
        content: The content.
        first: Sequence number of its first entry, as in the name of the file.

    Raises:
        ValueError: If the content is something else. The message is one line.
    """
    lines = content.split(b"\n")
    head = _read_head(lines[0])
    if head.first != first:
        raise ValueError(f"expected a commit that begins with entry {first}, found entry {head.first}")
    if len(lines) != head.count + 2 or lines[-1]:
        raise ValueError(f"expected {head.count} entries, found a file with {len(lines) - 2}")
    entries = []
    for nth, line in enumerate(lines[1:-1]):
        try:
            entries.append(LoggedEntry(first + nth, head.seconds, _decode(line, head.dim)))
        except ValueError as error:
            raise ValueError(f"line {nth + 2}: {error}") from None
    return Commit(head.id, entries, head.requests, EncoderOfCommit(head.encoder, head.dim), len(content))


def _read_head(line: bytes) -> _Head:
    try:
        fields = from_json(line)
    except ValueError:
        raise ValueError(f"expected the head of a commit as JSON, found {line[:40]!r}") from None
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(f"expected format_version {FORMAT_VERSION}, found {version!r}; a newer release may know it")
    try:
        return _Head.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(f"line 1: {_reason(error)}") from None


def _encode(entry: Entry, dim: int) -> dict[str, Any]:
    if isinstance(entry, Remove):
        return {"kind": f"remove_{entry.kind}", "uid": entry.uid}
    fields: dict[str, Any] = {"kind": f"put_{entry.kind}"} | dict(vars(entry))
    if isinstance(entry, PutInstance):
        fields["labels"] = list(entry.labels)
        fields |= fields.pop("fields").changed()
    elif isinstance(entry, PutLabel) and not entry.fields:
        del fields["fields"]
    if entry.vector.shape != (dim,) or not np.isfinite(entry.vector).all():
        raise ValueError(f"{entry.uid}: expected a finite vector of shape ({dim},), found {entry.vector.shape}")
    fields["vector"] = base64.b64encode(entry.vector.astype(_FLOAT).tobytes()).decode()
    return fields


def _decode(content: bytes, dim: int) -> Entry:
    try:
        line = _LINE.validate_json(content)
    except ValidationError as error:
        raise ValueError(_reason(error)) from None
    match line:
        case _PutInstance():
            vector = _vector(line.vector, dim)
            return PutInstance(line.uid, line.text, line.labels, vector, InstanceFields.of(line))
        case _PutLabel():
            return PutLabel(line.uid, line.text, _vector(line.vector, dim), line.fields)
        case _PutCorrection():
            return PutCorrection(line.uid, line.query, line.label, _vector(line.vector, dim))
    kind: Any = line.kind.removeprefix("remove_")
    return Remove(kind, line.uid)


def _vector(text: str, dim: int) -> Float[np.ndarray, " dim"]:
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"vector: expected base64, found {text[:40]!r}") from None
    if len(content) != dim * _FLOAT.itemsize:
        raise ValueError(f"vector: expected {dim} dimensions, found {len(content) / _FLOAT.itemsize:g}")
    vector = np.frombuffer(content, dtype=_FLOAT)
    if not np.isfinite(vector).all():
        raise ValueError("vector: expected finite numbers, found others")
    return vector


def _reason(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    name = ".".join(part for part in map(str, problem["loc"]) if not part.startswith(("put_", "remove_")))
    if problem["type"] == "extra_forbidden":
        return f"unknown field {name}; a newer release may know it"
    if problem["type"] == "missing":
        return f"expected a field {name}, found none"
    where = f"{name}: " if name else ""
    return f"{where}expected {first_problem(error)}, found {problem['input']!r:.60}"
