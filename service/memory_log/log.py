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

An interrupted write leaves the beginning of a group at the end of the last segment. Readers ignore it, and the next
append replaces it. Any other damage is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import structlog
from jaxtyping import Float

from service.bundle.manifest import Manifest
from service.bundle.signing_key import SigningKey
from service.errors import MemoryLogError
from service.memory.entries import Entry, LoggedEntry, PutCorrection, PutInstance, PutLabel
from service.memory_log.entry_encoding import decode_entries, encode_entry
from service.memory_log.groups import (
    MAX_BODY_BYTES,
    MAX_GROUP_BYTES,
    NO_DIGEST,
    EncoderOfGroup,
    Group,
    Place,
    encode_group,
    read_group,
    signed_bytes,
)
from service.memory_log.log_keys import LogKeys
from service.memory_log.segments import FolderSegments, ObjectSegments, Segments, segment_name
from service.storage.object_folder import ObjectFolder
from service.store.store import Store

log = structlog.get_logger(__name__)

MEMORY = "memory"

EncodeTexts = Callable[[Sequence[str]], Float[np.ndarray, "text dim"]]


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
        keys: The keys of a signed log.

    Attributes:
        name: The folder of the log, for messages.
        size_bytes: Size of all groups that were read or appended.
    """

    def __init__(
        self,
        segments: Segments,
        encoder: EncoderOfGroup,
        encode: EncodeTexts | None = None,
        after: int = 0,
        keys: LogKeys = LogKeys(),  # noqa: B008 - immutable
    ) -> None:
        self.name, self.size_bytes = segments.name, 0
        self._segments, self._encoder, self._encode, self._after, self._keys = segments, encoder, encode, after, keys
        self._segment, self._offset, self._place = 0, 0, Place(0, NO_DIGEST)
        self._is_signed = False
        self._found: list[LoggedEntry] = []  # entries that a call has read before it failed, for the next call
        self._mutex = threading.Lock()

    @classmethod
    def of(
        cls, store: Store, manifest: Manifest, encode: EncodeTexts | None = None, signing: SigningKey | None = None
    ) -> MemoryLog:
        """The log of a store for a process that serves a version.

        Args:
            store: The store.
            manifest: The manifest of the version.
            encode: Encodes texts with the encoder of the version, as in the constructor.
            signing: Private key that signs new entries.

        Raises:
            KeyFileError: If the private key does not match the public keys of the store.
        """
        files = store.files
        segments = (
            ObjectSegments(files, MEMORY) if isinstance(files, ObjectFolder) else FolderSegments(store.root / MEMORY)
        )
        return cls(segments, encoder_of(manifest), encode, manifest.memory_sequence, LogKeys.of(store, signing))

    @property
    def sequence(self) -> int:
        """Sequence number of the last entry that was read or appended; 0 if there is none."""
        return self._place.sequence

    @property
    def digest(self) -> bytes:
        """Digest of all entries up to the last one that was read or appended; empty if there is none.

        It differs between logs with other entries, also if they have equal sequence numbers.
        """
        return (self._place.digest or b"") if self.sequence else b""

    def read(self) -> list[LoggedEntry]:
        """The entries that were appended since the last call, oldest first. In a folder, no news cost two `stat` calls.

        Raises:
            MemoryLogError: If the log is damaged, or is not signed as it must be.
            StoreError, OSError: If the log cannot be read.
        """
        with self._mutex:
            if self._segment and self._segments.is_unchanged(self._segment, self._offset, self.sequence + 1):
                return []
            with self._segments.shared():
                return self._read()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Section]:
        """Let no other thread and process append, and read the entries that others have appended.

        Raises:
            MemoryLogError, StoreError, OSError: As in `read`; or if another process holds the lock for too long.
        """
        with self._mutex, self._segments.exclusive():
            yield Section(self, self._read())

    @property
    def exists(self) -> bool:
        """Whether the log has segments."""
        return self._segments.has(self._segments.first())

    def require_writable(self) -> None:
        """Check that this process may append.

        Raises:
            MemoryLogError: If the log lacks entries that the bundle contains, or if entries must be signed and there is
                no private key.
        """
        if self.sequence < self._after:
            raise self._foreign()
        if self._keys.signing is None and (self._keys.verify is not None or self._is_signed):
            raise MemoryLogError(
                f"{self.name}: expected a private key, because the entries of this log must be signed, found none; "
                "name the key with --sign"
            )

    def _read(self) -> list[LoggedEntry]:
        if not self._segment:
            self._segment = self._segments.first()
            if self._segment > self._after + 1:
                removed = f"{self._after + 1} to {self._segment - 1}"
                raise MemoryLogError(
                    f"{self.name}: expected all entries after {self._after}, found that entries {removed} were "
                    "removed; serve a newer version"
                )
            if self._segment > 1:
                self._place = Place(self._segment - 1, None)
        while True:
            content = memoryview(self._segments.read(self._segment, self._offset, MAX_GROUP_BYTES))
            at = self._take(content)
            if at and at < len(content):  # there were more bytes than those of the largest group
                continue
            following = self.sequence + 1
            if following == self._segment or not self._segments.has(following):
                if 0 < self.sequence < self._after:
                    raise self._foreign()
                found, self._found = self._found, []
                return found
            if at < len(content):
                raise self._damaged("expected the end of the segment, because another one follows, found more bytes")
            self._segment, self._offset = following, 0

    def _take(self, content: memoryview) -> int:
        """Read all complete groups; return the number of bytes that were read."""
        at = 0
        while at < len(content):
            try:
                group = read_group(content[at:], self._place)
                if group is None:
                    break
                self._verify(group)
                entries = self._decode(group)
            except ValueError as error:
                raise self._damaged(str(error)) from None
            self._found += entries
            self._advance(group.size, group.end, bool(group.signature))
            at += group.size
        return at

    def _decode(self, group: Group) -> list[LoggedEntry]:
        if group.end.sequence <= self._after:
            return []
        decoded = decode_entries(group.body, self.sequence + 1, group.entries, group.encoder.dim)
        entries = [each for each in decoded if each.sequence > self._after]
        return entries if group.encoder == self._encoder else self._encode_again(entries)

    def _encode_again(self, entries: list[LoggedEntry]) -> list[LoggedEntry]:
        """Replace the vectors of another encoder."""
        texts = [encoded_text(each.entry) for each in entries]
        wanted = [text for text in texts if text is not None]
        if self._encode is None or not wanted:
            vectors = np.empty((len(wanted), 0), dtype=np.float32)
        else:
            vectors = self._encode(wanted)
        own = iter(vectors)
        return [
            each if text is None else LoggedEntry(each.sequence, each.seconds, _with_vector(each.entry, next(own)))
            for each, text in zip(entries, texts, strict=True)
        ]

    def _verify(self, group: Group) -> None:
        if self._keys.verify is None:
            return
        keys = self._keys.verify()
        if not keys.signed(signed_bytes(group.end.digest or NO_DIGEST), group.signature):
            found = "another signature" if group.signature else "no signature"
            raise MemoryLogError(
                f"{self._where()}: expected entries that are signed for {keys.name}, found {found}; if you trust the "
                "writer, add its public key to the file; otherwise move the log away"
            )

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
        signing = self._keys.signing
        content, end = encode_group(self._place, self._encoder, encoded, None if signing is None else signing.sign)
        if self._offset and self._offset >= self._segments.max_bytes:
            segment, offset = self.sequence + 1, 0
        else:
            segment, offset = self._segment, self._offset
        if self._segments.append(segment, offset, content):
            log.warning(
                "memory_log_repaired",
                file=f"{self.name}/{segment_name(segment)}",
                offset=offset,
                reason="an interrupted write, which was never acknowledged, was removed",
            )
        self._segment, self._offset = segment, offset
        self._advance(len(content), end, signing is not None)

    def _advance(self, size: int, end: Place, is_signed: bool) -> None:
        self._offset += size
        self.size_bytes += size
        self._place, self._is_signed = end, is_signed

    def _where(self) -> str:
        return f"{self.name}/{segment_name(self._segment)}: byte {self._offset:,}"

    def _foreign(self) -> MemoryLogError:
        """A new entry would get the number of one that the bundle contains, and would be skipped later."""
        return MemoryLogError(
            f"{self.name}: expected the log whose first {self._after:,} entries the version contains, found a log of "
            f"{self.sequence:,} entries; copy the folder {MEMORY}/ of the store in which the version was built"
        )

    def _damaged(self, reason: str) -> MemoryLogError:
        return MemoryLogError(
            f"{self._where()}: {reason}; the log is damaged: restore the file from a copy, or keep only the entries "
            f"before this byte with `truncate -s {self._offset}`"
        )


def encoder_of(manifest: Manifest) -> EncoderOfGroup:
    """The encoder of a version: the digest of its files, and of the length at which it truncates texts."""
    files = manifest.files["encoder.onnx"].sha256, manifest.files["tokenizer.json"].sha256
    facts = (*files, str(manifest.encoder.max_length))
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
