"""The log of a store's live memory: every change of the memory, in order, durable and checked.

    store/   memory/   the segments of the log

A commit holds the lock of the log, reads the entries that other processes have appended, decides its own entries, and
appends these as one group. An object store has no lock; there, the append fails if another process was faster.

    with log.exclusive() as section:
        memory = apply(memory, section.others)
        check the request against the memory
        entries = number(changes, section.next_sequence)
        section.append(entries)
    memory = apply(memory, entries)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from recollect.service.bundle.manifest import Manifest
from recollect.service.errors import MemoryLogError
from recollect.service.memory.changes import Encode
from recollect.service.memory.entries import Entry, LoggedEntry, PutCorrection, PutInstance, PutLabel
from recollect.service.memory_log.entry_encoding import decode_entries, encode_entry
from recollect.service.memory_log.folder_segments import FolderSegments
from recollect.service.memory_log.group_log import GroupLog
from recollect.service.memory_log.groups import MAX_BODY_BYTES, EncoderOfGroup, Group, encode_group
from recollect.service.memory_log.object_segments import ObjectSegments
from recollect.service.memory_log.segments import MEMORY, Segments
from recollect.service.storage.object_folder import ObjectFolder
from recollect.service.store.store import Store


def number(entries: Sequence[Entry], first: int) -> list[LoggedEntry]:
    """Give entries their sequence numbers, from `first` on, and the present time."""
    now = time.time()
    return [LoggedEntry(first + nth, now, entry) for nth, entry in enumerate(entries)]


class Section:
    """An exclusive section of a log.

    Attributes:
        others: The entries that were appended since this process read the log last.
    """

    def __init__(self, log: MemoryLog, others: list[LoggedEntry]) -> None:
        self._log, self.others = log, others

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next entry."""
        return self._log.sequence + 1

    def append(self, entries: Sequence[LoggedEntry]) -> None:
        """Append entries as one group. They are durable when this method returns.

        Raises:
            LogConflictError: If another process has appended entries meanwhile, and the store has no locks.
            MemoryLogError, StoreError: If the entries cannot be written. Then the log does not change.
        """
        if entries:
            self._log._append(entries)


class MemoryLog:
    """The log of a store, as the process of one version reads and writes it. Several threads may use it.

    Args:
        segments: The files of the log.
        encoder: The encoder of this process.
        encode: Encodes texts with this encoder. Entries with vectors of another encoder are encoded again. None: the
            caller needs no vectors, and such entries get empty ones.
        after: Entries up to this sequence number are not returned, because the bundle contains them.
    """

    def __init__(
        self,
        segments: Segments,
        encoder: EncoderOfGroup,
        encode: Encode | None = None,
        after: int = 0,
    ) -> None:
        self._groups = GroupLog(segments, after)
        self._encoder, self._encode, self._after = encoder, encode, after
        self._found: list[LoggedEntry] = []  # entries that a call has read before it failed, for the next call
        self._mutex = threading.Lock()

    @classmethod
    def of(cls, store: Store, manifest: Manifest, encode: Encode | None = None) -> MemoryLog:
        """The log of a store for a process that serves a version.

        Args:
            store: The store.
            manifest: The manifest of the version.
            encode: Encodes texts with the encoder of the version, as in the constructor.
        """
        return cls(segments_of(store), encoder_of(manifest), encode, manifest.memory_sequence)

    @property
    def name(self) -> str:
        """The folder of the log, for messages."""
        return self._groups.name

    @property
    def size_bytes(self) -> int:
        """Size of all groups that were read or appended."""
        return self._groups.size_bytes

    @property
    def sequence(self) -> int:
        """Sequence number of the last entry that was read or appended; 0 if there is none."""
        return self._groups.place.sequence

    @property
    def digest(self) -> bytes:
        """Digest of all entries up to the last one that was read or appended; empty if there is none.

        It differs between logs with other entries, also if they have equal sequence numbers.
        """
        return (self._groups.place.digest or b"") if self.sequence else b""

    def read(self) -> list[LoggedEntry]:
        """The entries that were appended since the last call, oldest first. In a folder, no news cost two `stat` calls.

        Raises:
            MemoryLogError: If the log is damaged.
            StoreError, OSError: If the log cannot be read.
        """
        with self._mutex:
            if self._groups.is_unchanged:
                return []
            with self._groups.shared():
                return self._read()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Section]:
        """Let no other thread and process append, and read the entries that others have appended.

        Raises:
            MemoryLogError, StoreError, OSError: As in `read`; or if another process holds the lock for too long.
        """
        with self._mutex, self._groups.exclusive():
            yield Section(self, self._read())

    @property
    def exists(self) -> bool:
        """Whether the log has segments."""
        return self._groups.exists

    def require_writable(self) -> None:
        """Check that this process may append.

        Raises:
            MemoryLogError: If the log lacks entries that the bundle contains.
        """
        self._groups.require_writable()

    def _read(self) -> list[LoggedEntry]:
        self._groups.read(self._take)
        found, self._found = self._found, []
        return found

    def _take(self, group: Group) -> None:
        self._found += self._decode(group)

    def _decode(self, group: Group) -> list[LoggedEntry]:
        if group.end.sequence <= self._after:
            return []
        decoded = decode_entries(group.body, self.sequence + 1, group.entries, group.encoder.dim)
        entries = [each for each in decoded if each.sequence > self._after]
        return entries if group.encoder == self._encoder else self._encode_again(entries)

    def _encode_again(self, entries: list[LoggedEntry]) -> list[LoggedEntry]:
        """Replace the vectors of another encoder."""
        labels = [each for each in entries if isinstance(each.entry, PutLabel)]
        others = [
            each for each in entries if not isinstance(each.entry, PutLabel) and encoded_text(each.entry) is not None
        ]
        texts = ([encoded_text(each.entry) or "" for each in part] for part in (others, labels))
        if self._encode is None or not (others or labels):
            vectors = np.empty((len(others) + len(labels), 0), dtype=np.float32)
        else:
            vectors = self._encode(*texts)
        own = {each.sequence: vector for each, vector in zip([*others, *labels], vectors, strict=True)}
        return [
            LoggedEntry(each.sequence, each.seconds, _with_vector(each.entry, own[each.sequence]))
            if each.sequence in own
            else each
            for each in entries
        ]

    def _append(self, entries: Sequence[LoggedEntry]) -> None:
        self.require_writable()
        if entries[0].sequence != self.sequence + 1:
            raise ValueError(f"expected sequence number {self.sequence + 1}, found {entries[0].sequence}")
        encoded = [encode_entry(entry, self._encoder.dim) for entry in entries]
        if (size := sum(map(len, encoded))) > MAX_BODY_BYTES:
            raise MemoryLogError(
                f"{self.name}: expected at most {MAX_BODY_BYTES:,} bytes of entries in one write, found {size:,}; "
                "write fewer entries at once"
            )
        self._groups.append(*encode_group(self._groups.place, self._encoder, encoded))


def encoder_of(manifest: Manifest) -> EncoderOfGroup:
    """The encoder of a version: the digest of its files, its prompts, and the length at which it truncates texts."""
    files = manifest.files["encoder.onnx"].sha256, manifest.files["tokenizer.json"].sha256
    info = manifest.encoder
    prompts = [json.dumps([info.query_prompt, info.label_prompt])] if info.query_prompt or info.label_prompt else []
    facts = (*files, str(info.max_length), *prompts)
    return EncoderOfGroup(hashlib.sha256("\n".join(facts).encode()).digest(), manifest.dim)


def encoded_text(entry: Entry) -> str | None:
    """The text whose vector an entry has; None for an entry without a vector."""
    if isinstance(entry, PutInstance | PutLabel):
        return entry.text
    return entry.query if isinstance(entry, PutCorrection) else None


def _with_vector(entry: Entry, vector: Float[np.ndarray, " dim"]) -> Entry:
    if isinstance(entry, PutInstance | PutLabel | PutCorrection):
        return dataclasses.replace(entry, vector=vector)
    return entry


def segments_of(store: Store) -> Segments:
    """The segments of the log of a store."""
    files = store.files
    return ObjectSegments(files, MEMORY) if isinstance(files, ObjectFolder) else FolderSegments(store.root / MEMORY)
