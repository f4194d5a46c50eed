"""The binary form of an entry: a JSON object, then the vector of an entry that has one.

    entry  = length of the JSON (4 bytes) + dimensions of the vector (4 bytes) + JSON in UTF-8 + float32 numbers

All numbers are little-endian. The JSON names the kind of the entry, the time of its write and its fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from recollect.service.memory.entries import (
    Entry,
    LoggedEntry,
    PutCorrection,
    PutInstance,
    PutLabel,
    RemoveCorrection,
    RemoveInstance,
    RemoveLabel,
)

_KINDS: dict[str, type[Entry]] = {
    "put_instance": PutInstance,
    "put_label": PutLabel,
    "remove_instance": RemoveInstance,
    "remove_label": RemoveLabel,
    "put_correction": PutCorrection,
    "remove_correction": RemoveCorrection,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
# The fields of each kind, without its vector.
_FIELDS = {kind: {field.name for field in dataclasses.fields(kind)} - {"vector"} for kind in _NAMES}
_WITH_VECTOR = {kind for kind in _NAMES if "vector" in {field.name for field in dataclasses.fields(kind)}}

_LENGTHS = struct.Struct("<II")
_FLOAT = np.dtype("<f4")


def encode_entry(logged: LoggedEntry, dim: int) -> bytes:
    """Encode an entry.

    Args:
        logged: The entry. Its sequence number is not encoded, because it follows from the entry's place in the log.
        dim: Dimensions that its vector must have.

    Raises:
        ValueError: If the vector has another shape, or a number of it is not finite.
    """
    entry = logged.entry
    fields = {name: getattr(entry, name) for name in _FIELDS[type(entry)]}
    if isinstance(entry, PutInstance):
        fields["labels"] = list(entry.labels)
        if entry.weight == 1:
            del fields["weight"]
    vector = b""
    if not isinstance(entry, RemoveInstance | RemoveLabel | RemoveCorrection):
        if entry.vector.shape != (dim,) or not np.isfinite(entry.vector).all():
            raise ValueError(f"{entry.uid}: expected a finite vector of shape ({dim},), found {entry.vector.shape}")
        vector = np.ascontiguousarray(entry.vector, dtype=_FLOAT).tobytes()
    header = {"kind": _NAMES[type(entry)], "seconds": logged.seconds, **fields}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return _LENGTHS.pack(len(text), len(vector) // _FLOAT.itemsize) + text + vector


def decode_entries(body: memoryview, first: int, count: int, dim: int) -> list[LoggedEntry]:
    """Decode all entries of a group.

    Args:
        body: The entries, one after the other.
        first: Sequence number of the first entry.
        count: Number of entries.
        dim: Dimensions of their vectors.

    Raises:
        ValueError: If the bytes are not such entries.
    """
    at, entries = 0, []
    for sequence in range(first, first + count):
        fields, vector, at = _split(body, at)
        entries.append(_decode(fields, vector, sequence, dim))
    if at < len(body):
        raise ValueError(f"expected {count} entries in a group, found more")
    return entries


def _split(body: memoryview, start: int) -> tuple[dict[str, Any], memoryview, int]:
    """The JSON object and the bytes of the vector of the entry at a position, and the position after the entry."""
    if len(body) - start < _LENGTHS.size:
        raise ValueError("expected an entry, found the end of the group")
    json_bytes, dim = _LENGTHS.unpack_from(body, start)
    at = start + _LENGTHS.size
    end = at + json_bytes + dim * _FLOAT.itemsize
    if end > len(body):
        raise ValueError("expected an entry within its group, found a longer one")
    try:
        fields = json.loads(bytes(body[at : at + json_bytes]).decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected the JSON of an entry, found: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("expected the JSON object of an entry, found another JSON value")
    return fields, body[at + json_bytes : end], end


def _decode(fields: dict[str, Any], vector: memoryview, sequence: int, dim: int) -> LoggedEntry:
    kind = _KINDS.get(str(fields.get("kind")))
    if kind is None:
        raise ValueError(f"expected a kind of entry, found {fields.get('kind')!r:.40}; a newer release may know it")
    values = {name: value for name, value in fields.items() if name not in ("kind", "seconds")}
    required = _FIELDS[kind] - {"weight"}
    if not required <= values.keys() <= _FIELDS[kind]:
        raise ValueError(f"expected the fields {', '.join(sorted(required))}, found {', '.join(sorted(values))}")
    for name, value in [*values.items(), ("seconds", fields.get("seconds"))]:
        if not _CHECKS.get(name, _is_text)(value):
            raise ValueError(f"expected a field {name} of another type or value, found {value!r:.40}")
    if len(vector) != (_FLOAT.itemsize * dim if kind in _WITH_VECTOR else 0):
        raise ValueError(f"expected a vector of {dim} dimensions, found {len(vector) // _FLOAT.itemsize}")
    if kind in _WITH_VECTOR:
        values["vector"] = np.frombuffer(vector, dtype=_FLOAT).copy()  # the copy does not keep the whole group
        if not np.isfinite(values["vector"]).all():
            raise ValueError("expected finite numbers in the vector, found others")
    return LoggedEntry(sequence, float(fields["seconds"]), kind(**values))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_labels(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_text, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_weight(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator] # a number


_CHECKS: dict[str, Callable[[object], bool]] = {"labels": _are_labels, "weight": _is_weight, "seconds": _is_number}
