"""The log of a store's live memory: every change of the memory, in order.

    store/   memory/   00000000000000000001.jsonl   a commit; its name is the sequence number of its first entry
                       00000000000000000011.jsonl   the commit after it, so the first one has ten entries
                       00000000000000000010.pruned  a marker: commits up to this number may have been removed

A file never changes, and of two processes that create the same name, one wins. So a writer creates the file with the
next number. If it exists, another writer was faster: the writer reads this commit, decides again, and tries the next
number. There is no lock. A reader asks for the next number.

A process may be suspended for hours. Meanwhile, the commits after its last one can become part of a bundle and be
removed, and their numbers are free again. So `prune` writes a marker before it removes commits, and removes none that
is younger than an hour. A process whose knowledge of the end of the log is older than five minutes reads the markers.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from recollect.core.bundle.manifest import Manifest
from recollect.core.errors import BundleError, MemoryLogError, StoreError
from recollect.core.tables.entries import LoggedEntry, PutCorrection, PutLabel, Remove
from recollect.edits.changes import Encode
from recollect.edits.commits import (
    Answered,
    Commit,
    EncoderOfCommit,
    decode_commit,
    encode_commit,
    new_commit,
)
from recollect.store.object_folder import StoreFiles
from recollect.store.store import Store

# The folder of the log in a store.
MEMORY = "memory"
COMMIT, MARKER = ".jsonl", ".pruned"
_DIGITS = 20
MAX_COMMIT_BYTES = 256 << 20
# Calls of an object store at the same time, and entries that are returned together.
_CALLS, _BLOCK_ENTRIES = 32, 1_000
# Age from which on the knowledge of the end of the log is checked. `prune` keeps commits of an hour.
_OLD_SECONDS, _KEPT_SECONDS = 300.0, 3_600.0

_Result = TypeVar("_Result")


class MemoryLog:
    """The log of a store, as the process of one version reads and writes it. One thread at a time uses an object.

    Args:
        files: The files of the store.
        encoder: The encoder of this process.
        encode: Encodes texts with this encoder. Vectors of another encoder are replaced. None: the caller needs no
            vectors, and such entries get zeros.
        after: Entries up to this sequence number are not returned, because the bundle contains them.

    Attributes:
        name: The folder of the log, for messages.
        sequence: Sequence number of the last known entry; `after` if there is none.
        id: The id of the last known commit: another log has another one, also at this number. Empty if there is none.
        size_bytes: Size of all known commits.
    """

    def __init__(
        self, files: StoreFiles, encoder: EncoderOfCommit, encode: Encode | None = None, after: int = 0
    ) -> None:
        self.name, self.sequence, self.id, self.size_bytes = f"{files.name}/{MEMORY}", after, "", 0
        self._files, self._encoder, self._encode_texts, self._after = files, encoder, encode, after
        self._is_missing = False  # the log lacks entries that the bundle contains
        self._known_at: float | None = None  # time at which no commit existed after the known ones; None at first

    @classmethod
    def of(cls, store: Store, manifest: Manifest, encode: Encode | None = None) -> MemoryLog:
        """The log of a store for a process that serves a version.

        Args:
            store: The store.
            manifest: The manifest of the version.
            encode: Encodes texts with the encoder of the version, as in the constructor.
        """
        return cls(store.files, _encoder_of(manifest), encode, manifest.memory_sequence)

    def read(self) -> list[LoggedEntry]:
        """The entries after the known ones, oldest first.

        Raises:
            MemoryLogError, StoreError: As in `news`.
        """
        return [entry for commits in self.news() for commit in commits for entry in commit.entries]

    def news(self) -> Iterator[list[Commit]]:
        """Yield the commits after the known ones, oldest first, in blocks. Without news, this costs one call.

        A block is known when the caller asks for the next one. If the caller fails before, it gets the block again.

        Raises:
            MemoryLogError: If a file is damaged, or entries are missing.
            StoreError: If the log cannot be read.
        """
        can_list = self._files.can_list
        probes = 2 if can_list else sys.maxsize  # a list is faster than further probes
        for _ in range(0 if can_list and self._known_at is None else probes):
            asked = boot_seconds()
            if (commit := self._read(self.sequence + 1)) is None:
                self._require_end(asked)
                return
            yield from self._take([commit])
        asked = boot_seconds()
        listed = self._listed() if self._known_at is not None else self._open()
        yield from self._blocks(listed)
        self._known_at = None if self._is_missing else asked

    def append(self, entries: Sequence[LoggedEntry], requests: Sequence[Answered] = ()) -> Commit | None:
        """Create the next commit. It is durable when this method returns, and known after `advance`.

        Args:
            entries: The entries. The first one has the number after `sequence`.
            requests: The requests with a key that they carry out.

        Returns:
            The commit; None if another process was faster. Then nothing has changed.

        Raises:
            MemoryLogError: If the commit cannot be written.
        """
        self.require_writable()
        commit = new_commit(entries, requests, self._encoder)
        if commit.first != self.sequence + 1:
            raise ValueError(f"expected sequence number {self.sequence + 1}, found {commit.first}")
        content, asked = encode_commit(commit), boot_seconds()
        if len(content) > MAX_COMMIT_BYTES:
            raise MemoryLogError(
                f"{self.name}: expected at most {MAX_COMMIT_BYTES:,} bytes of entries in one write, found "
                f"{len(content):,}; write fewer entries at once"
            )
        path = path_of(commit.first)
        try:
            if not self._files.create(path, content):
                return None
        except StoreError as error:
            raise MemoryLogError(str(error)) from None
        try:
            self._require_end(asked)
        except MemoryLogError:
            self._files.delete(path)
            raise
        return dataclasses.replace(commit, size_bytes=len(content))

    def advance(self, commit: Commit) -> None:
        """Count a commit as known."""
        self.sequence, self.id = commit.last, commit.id
        self.size_bytes += commit.size_bytes

    def require_writable(self) -> None:
        """Check that this process may append, after the first call of `news`.

        Raises:
            MemoryLogError: If the log lacks entries that the bundle contains: other versions of the store would give a
                new entry the number of one of these.
        """
        if self._is_missing:
            raise MemoryLogError(
                f"{self.name}: expected the log whose first {self._after:,} entries the version contains, found none; "
                "copy the log from the store in which the version was built with `recollect copy --memory-log`"
            )

    def _open(self) -> list[int]:
        """The commits after the bundle. Check that the log has the entries of the bundle."""
        names, known = self._files.names(MEMORY), self.sequence
        commits, removed = _numbers(names, COMMIT), _removed_up_to(names)
        self._require_present(removed)
        self._is_missing = known > removed and not commits
        place = bisect.bisect_right(commits, known)
        later = commits[place:]
        if self._is_missing or known in (0, removed) or later[:1] == [known + 1]:
            return later
        last = self._read(commits[place - 1]) if place else None
        if last is None or last.last < known:
            raise MemoryLogError(
                f"{self.name}: expected the log whose first {known:,} entries the version contains, found a log of "
                f"{0 if last is None else last.last:,} entries; copy the log from the store in which the version was "
                "built with `recollect copy --memory-log`"
            )
        return later if last.last == known else [last.first, *later]

    def _listed(self) -> list[int]:
        """The commits after the known ones, by their first entries."""
        # A name without its ending comes before all names with this number.
        names = self._files.names(MEMORY, after=f"{self.sequence + 1:0{_DIGITS}}")
        self._require_present(_removed_up_to(names))
        return _numbers(names, COMMIT)

    def _require_end(self, asked: float) -> None:
        """Note that there was no commit after the known ones at a time. Read the markers if the last note is old."""
        if self._files.can_list and (self._known_at is None or boot_seconds() - self._known_at > _OLD_SECONDS):
            self._listed()
        self._known_at = asked

    def _require_present(self, removed: int) -> None:
        if removed > self.sequence:
            raise MemoryLogError(
                f"{self.name}: expected the entries after {self.sequence:,}, found that those up to {removed:,} were "
                "removed by `recollect prune --memory-log`; serve a newer version, or restart this process if it was "
                "suspended"
            )

    def _blocks(self, commits: Sequence[int]) -> Iterator[list[Commit]]:
        """Read commits, and yield them in blocks. Those before an error are yielded, too."""
        block = list[Commit]()
        try:
            for commit in self._in_order(commits):
                block.append(commit)
                if commit.last >= self.sequence + _BLOCK_ENTRIES:
                    yield from self._take(block)
                    block = []
        except StoreError:
            yield from self._take(block)
            raise
        yield from self._take(block)

    def _in_order(self, commits: Sequence[int]) -> Iterator[Commit]:
        """Read commits, several at the same time, and check that none is missing between them."""
        expected = self.sequence + 1
        for first, content in zip(commits, _in_parallel(self._content, commits), strict=True):
            while expected < first:  # perhaps the list was made while the commit was created
                if (between := self._read(expected)) is None:
                    self._listed()
                    raise MemoryLogError(
                        f"{self._files.name}/{path_of(expected)}: expected a commit, because later ones exist, found "
                        "none; restore the file from a copy of the store"
                    )
                yield between
                expected = between.last + 1
            if content is not None:  # otherwise the next one finds that it was removed meanwhile
                commit = _decoded(self._files, first, content)
                yield commit
                expected = commit.last + 1

    def _take(self, block: list[Commit]) -> Iterator[list[Commit]]:
        if block:
            yield [self._as_asked(commit) for commit in block]
        for commit in block:
            self.advance(commit)

    def _content(self, first: int) -> bytes | None:
        return self._files.read(path_of(first), MAX_COMMIT_BYTES)

    def _read(self, first: int) -> Commit | None:
        content = self._content(first)
        return None if content is None else _decoded(self._files, first, content)

    def _as_asked(self, commit: Commit) -> Commit:
        """A commit without the entries that the bundle contains, and with vectors of this process's encoder."""
        if commit.first > self._after and commit.encoder == self._encoder:
            return commit
        entries = [each for each in commit.entries if each.sequence > self._after]
        if commit.encoder != self._encoder:
            entries = self._encode_again(entries)
        return dataclasses.replace(commit, entries=entries)

    def _encode_again(self, entries: list[LoggedEntry]) -> list[LoggedEntry]:
        """Replace the vectors of another encoder."""
        puts = {each.sequence: each.entry for each in entries if not isinstance(each.entry, Remove)}
        labels = {sequence: put.text for sequence, put in puts.items() if isinstance(put, PutLabel)}
        others = {
            sequence: put.query if isinstance(put, PutCorrection) else put.text
            for sequence, put in puts.items()
            if not isinstance(put, PutLabel)
        }
        vectors = np.zeros((len(puts), self._encoder.dim), dtype=np.float32)
        if self._encode_texts is not None and puts:
            vectors = self._encode_texts([*others.values()], [*labels.values()])
        for sequence, vector in zip([*others, *labels], vectors, strict=True):
            puts[sequence] = dataclasses.replace(puts[sequence], vector=vector)
        return [dataclasses.replace(each, entry=puts.get(each.sequence, each.entry)) for each in entries]


def extent(store: Store) -> tuple[int, int]:
    """The sequence number up to which entries may have been removed from the log, and that of the last entry.

    Both are 0 without a log.

    Raises:
        MemoryLogError, StoreError: If the log cannot be read.
    """
    names = store.files.names(MEMORY)
    commits, removed = _numbers(names, COMMIT), _removed_up_to(names)
    return removed, max(removed, _read(store, commits[-1]).last) if commits else removed


def prune_log(store: Store, without: Collection[str] = (), dry_run: bool = False) -> int:
    """Remove the commits that the bundles of all versions of a store contain; return their number.

    Commits of the last hour stay, and so does the last one. An interrupted removal is continued by the next call.

    Args:
        store: The store.
        without: Versions that need no entries, because they would be removed.
        dry_run: Remove nothing; return the number of commits that would be removed.

    Raises:
        StoreError: If the store cannot be read or written.
        BundleError: If a manifest is broken, so that it is not known which entries its version needs.
    """
    names = store.files.names(MEMORY)
    commits, markers = _numbers(names, COMMIT), _numbers(names, MARKER)
    contained, oldest = _contained(store, without), time.time() - _KEPT_SECONDS
    # A commit ends where the next one begins.
    count = bisect.bisect_right([following - 1 for following in commits[1:]], contained)
    count = bisect.bisect_left(commits, True, hi=count, key=lambda first: _read(store, first).seconds > oldest)
    if count and not dry_run:
        last = commits[count] - 1
        if last not in markers:
            _mark(store, last)
        for _ in _in_parallel(lambda first: store.files.delete(path_of(first)), commits[:count]):
            pass
        store.files.delete(*(path_of(each, MARKER) for each in markers if each < last))
    return count


def copy_log(source: Store, target: Store) -> int:
    """Copy the commits that the log of the target lacks; return the number of entries.

    The copy is a log after each step. After an interruption, the next call continues it.

    Raises:
        MemoryLogError: If the log of the target is not the beginning of that of the source, or a log is damaged.
        StoreError: If a log cannot be read or written.
    """
    names, copied_names = source.files.names(MEMORY), target.files.names(MEMORY)
    commits, copied = _numbers(names, COMMIT), _numbers(copied_names, COMMIT)
    if source.name == target.name or not commits:
        return 0
    if copied:
        last = copied[-1]
        if last not in commits or _content(source, last) != _content(target, last):
            raise _differs(source, target, last)
        commits = [first for first in commits if first > last]
    elif removed := _removed_up_to(names):
        _mark(target, removed)
    entries = 0
    contents = _in_parallel(lambda first: _content(source, first), commits)
    for first, content in zip(commits, contents, strict=True):
        commit = _decoded(source.files, first, content)
        if not target.files.create(path_of(first), content) and _content(target, first) != content:
            raise _differs(source, target, first)
        entries += len(commit.entries)
    return entries


def _contained(store: Store, without: Collection[str]) -> int:
    """Sequence number of the last entry that the bundles of all versions contain."""
    kept = [version for version in store.versions() if version not in without]
    try:
        return min((store.manifest(version).memory_sequence for version in kept), default=0)
    except BundleError as error:
        raise BundleError(f"{error}. The memory log stays as it is; remove this version, or restore it") from None


def _mark(store: Store, removed: int) -> None:
    """Create the marker that commits up to a sequence number may have been removed."""
    store.files.create(path_of(removed, MARKER), json.dumps({"seconds": time.time()}).encode())


def _content(store: Store, first: int) -> bytes:
    content = store.files.read(path_of(first), MAX_COMMIT_BYTES)
    if content is None:
        raise MemoryLogError(
            f"{store.name}/{path_of(first)}: expected the commit that was listed, found none; another "
            "process prunes the log: try again"
        )
    return content


def _read(store: Store, first: int) -> Commit:
    return _decoded(store.files, first, _content(store, first))


def _differs(source: Store, target: Store, first: int) -> MemoryLogError:
    return MemoryLogError(
        f"{target.name}/{path_of(first)}: expected the same commit as in {source.name}, found another one "
        "or one that the source does not have any more; copy without --memory-log, or to a store without a log"
    )


def path_of(number: int, ending: str = COMMIT) -> str:
    """The path in a store of the commit with this first entry, or of the marker with this number."""
    return f"{MEMORY}/{number:0{_DIGITS}}{ending}"


def _numbers(names: Iterable[str], ending: str) -> list[int]:
    """The numbers in the names of commits or markers, in order."""
    found = (name.removesuffix(ending) for name in names if name.endswith(ending))
    return sorted(int(digits) for digits in found if len(digits) == _DIGITS and digits.isdecimal())


def _removed_up_to(names: Iterable[str]) -> int:
    """The sequence number up to which commits may have been removed, by the names in a log; 0 without a marker."""
    return max(_numbers(names, MARKER), default=0)


def _decoded(files: StoreFiles, first: int, content: bytes) -> Commit:
    """The commit in a file.

    Raises:
        MemoryLogError: If the file is damaged, or of another format.
    """
    try:
        return decode_commit(content, first)
    except ValueError as error:
        raise MemoryLogError(
            f"{files.name}/{path_of(first)}: {error}; if the file is damaged, restore it from a copy of the store"
        ) from None


def _in_parallel(call: Callable[[int], _Result], items: Sequence[int]) -> Iterator[_Result]:
    """The results of calls in order. Several calls run at the same time, and only their results are in memory."""
    with ThreadPoolExecutor(_CALLS, "log") as pool:
        for start in range(0, len(items), 8 * _CALLS):
            yield from pool.map(call, items[start : start + 8 * _CALLS])


def _encoder_of(manifest: Manifest) -> EncoderOfCommit:
    """The encoder of a version: the digest of its files, its prompts, and the lengths at which it truncates texts."""
    files = [manifest.files[name].sha256 for name in manifest.encoder_files]
    info = manifest.encoder
    prompts = [json.dumps([info.query_prompt, info.label_prompt])] if info.query_prompt or info.label_prompt else []
    lengths = [str(each) for each in (info.max_length, info.label_max_length) if each is not None]
    facts = (*files, *lengths, *prompts)
    return EncoderOfCommit(hashlib.sha256("\n".join(facts).encode()).hexdigest(), manifest.dim)


def boot_seconds() -> float:
    """Seconds of a clock that also counts the time in which the machine or the process is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
