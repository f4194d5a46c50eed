"""Logs for tests, with small vectors, and a memory that is a list of uids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recollect.service.memory.entries import Entry, LoggedEntry, PutInstance, PutLabel, RemoveInstance
from recollect.service.memory_log.folder_segments import FolderSegments
from recollect.service.memory_log.groups import EncoderOfGroup
from recollect.service.memory_log.log import MemoryLog, number
from recollect.service.memory_log.writer import MemoryWriter

DIM = 4
ENCODER = EncoderOfGroup(hashlib.sha256(b"encoder").digest(), DIM)


def folder_log(folder: Path, after: int = 0) -> MemoryLog:
    return MemoryLog(FolderSegments(folder), ENCODER, after=after)


def label(uid: str, text: str | None = None) -> PutLabel:
    return PutLabel(uid, f"text of {uid}" if text is None else text, vector_of(uid))


def instance(uid: str, labels: Sequence[str] = ("a",), weight: float = 1.0) -> PutInstance:
    return PutInstance(uid, f"text of {uid}", list(labels), vector_of(uid), weight)


def vector_of(text: str) -> np.ndarray:
    found = np.frombuffer(hashlib.sha256(text.encode()).digest()[: 2 * DIM], dtype="<u2").astype(np.float32)
    unit: np.ndarray = found / np.linalg.norm(found)
    return unit


def append(log: MemoryLog, *entries: Entry) -> list[LoggedEntry]:
    """Append entries in one section; return them with their sequence numbers."""
    with log.exclusive() as section:
        logged = number(entries, section.next_sequence)
        section.append(logged)
    return logged


def uids(entries: Sequence[LoggedEntry]) -> list[str]:
    return [logged.entry.uid for logged in entries]


def is_same(one: LoggedEntry, other: LoggedEntry) -> bool:
    """Whether two entries are equal, to the last bit of their vectors."""
    first, second = dict(vars(one.entry)), dict(vars(other.entry))
    vectors = [np.asarray(each.pop("vector", []), dtype=np.float32).tobytes() for each in (first, second)]
    numbers = [(each.sequence, each.seconds, type(each.entry)) for each in (one, other)]
    return vectors[0] == vectors[1] and numbers[0] == numbers[1] and first == second


def apply(memory: tuple[str, ...], entries: Sequence[LoggedEntry]) -> tuple[str, ...]:
    """A memory that is the uids of its instances and labels, in the order of their entries."""
    for logged in entries:
        memory = tuple(uid for uid in memory if uid != logged.entry.uid)
        if not isinstance(logged.entry, RemoveInstance):
            memory = (*memory, logged.entry.uid)
    return memory


def writer(log: MemoryLog) -> MemoryWriter[tuple[str, ...]]:
    return MemoryWriter(log, (), apply)
