"""Logs for tests, with small vectors, and a memory that is a list of uids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recollect.core.tables.entries import Entry, LoggedEntry, PutInstance, PutLabel, Remove
from recollect.edits.commits import EncoderOfCommit, number
from recollect.edits.log import MemoryLog
from recollect.edits.writer import MemoryWriter
from recollect.store.files import FolderFiles
from recollect.store.object_folder import StoreFiles

DIM = 4
ENCODER = EncoderOfCommit(hashlib.sha256(b"encoder").hexdigest(), DIM)


def log_in(store: Path | StoreFiles, after: int = 0) -> MemoryLog:
    """The log of a store."""
    return MemoryLog(FolderFiles(store) if isinstance(store, Path) else store, ENCODER, after=after)


def label(uid: str, text: str | None = None) -> PutLabel:
    return PutLabel(uid, f"text of {uid}" if text is None else text, vector_of(uid))


def instance(uid: str, labels: Sequence[str] = ("a",)) -> PutInstance:
    return PutInstance(uid, f"text of {uid}", list(labels), vector_of(uid))


def vector_of(text: str) -> np.ndarray:
    found = np.frombuffer(hashlib.sha256(text.encode()).digest()[: 2 * DIM], dtype="<u2").astype(np.float32)
    unit: np.ndarray = found / np.linalg.norm(found)
    return unit


def append(log: MemoryLog, *entries: Entry, seconds: float | None = None) -> list[LoggedEntry]:
    """Append entries in one commit after all others; return them with their sequence numbers."""
    log.read()
    logged = number(entries, log.sequence + 1)
    if seconds is not None:
        logged = [LoggedEntry(each.sequence, seconds, each.entry) for each in logged]
    commit = log.append(logged)
    assert commit is not None
    log.advance(commit)
    return logged


def uids(entries: Sequence[LoggedEntry]) -> list[str]:
    return [logged.entry.uid for logged in entries]


def is_same(one: LoggedEntry, other: LoggedEntry) -> bool:
    """Whether two entries are equal, to the last bit of their vectors."""
    first, second = dict(vars(one.entry)), dict(vars(other.entry))
    vectors = [np.asarray(each.pop("vector", []), dtype=np.float32).tobytes() for each in (first, second)]
    numbers = [(each.sequence, each.seconds, type(each.entry)) for each in (one, other)]
    return vectors[0] == vectors[1] and numbers[0] == numbers[1] and first == second


def apply(memory: tuple[str, ...], entries: Sequence[LoggedEntry], commit: str = "") -> tuple[str, ...]:
    """A memory that is the uids of its instances and labels, in the order of their entries."""
    for logged in entries:
        memory = tuple(uid for uid in memory if uid != logged.entry.uid)
        if not isinstance(logged.entry, Remove):
            memory = (*memory, logged.entry.uid)
    return memory


def writer(log: MemoryLog) -> MemoryWriter[tuple[str, ...]]:
    return MemoryWriter(log, (), apply)
