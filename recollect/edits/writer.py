"""Group commit: the threads of a process change a live memory together, with one commit and one flush.

The first thread that finds no commit in progress commits the changes of all waiting threads. All changes of a group are
decided on the memory before the group, and the memory gets them after they are durable. So that the result equals that
of one change after the other, a change of a label is the last one in its group, and no two changes of a group concern
the same instance or correction, or carry out the same request.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from recollect.core.bundle.bundle import Bundle
from recollect.core.errors import LogConflictError, RepeatedKeyError
from recollect.core.tables.entries import Entry, LoggedEntry, subject_of
from recollect.core.tables.snapshot import Snapshot, SnapshotBuilder
from recollect.edits.commits import Answered, Commit, number
from recollect.edits.log import MemoryLog

# A group with so many entries gets no further change. The changes that wait then are committed in the next group.
_MOST_ENTRIES = 2_000
# A change fails if other processes are faster for so long.
_MOST_SECONDS = 30.0
# A process that commits for `_BURST_SECONDS` waits for the time of `_REST_COMMITS` commits, but at least for
# `_PAUSE_SECONDS`. Otherwise a process that is a little slower would lose each race for the next number. A longer pause
# between two commits ends a burst.
_BURST_SECONDS, _REST_COMMITS, _PAUSE_SECONDS = 0.5, 3.0, 0.01
# Before a commit, the leader waits at most this share of the time of a commit for the threads of the group before.
_GATHER_SHARE = 0.25

_Memory = TypeVar("_Memory")


class Request(NamedTuple):
    """A request that is carried out once, even if it is sent several times.

    Attributes:
        key: Digest of the key that the client chose, and of the client.
        body: Digest of the request.
        answer: Its answer, without the sequence number.
    """

    key: str
    body: str
    answer: dict[str, Any]


class Written(NamedTuple):
    """The outcome of a change: the sequence number of its last entry, and the answer of the request that made it."""

    sequence: int
    answer: dict[str, Any]


class _Change(Generic[_Memory]):
    """A waiting change, and its outcome, which can be an error."""

    def __init__(self, decide: Callable[[_Memory], Sequence[Entry]], request: Request | None) -> None:
        self.decide, self.request = decide, request
        self.outcome: Written | BaseException | None = None


class _Group(Generic[_Memory]):
    """The changes of one commit."""

    def __init__(self, first: int) -> None:
        self.first, self.entries = first, list[LoggedEntry]()
        self.outcomes: list[tuple[_Change[_Memory], Written | Exception]] = []
        self.requests: dict[str, Answered] = {}
        self._concerned: set[tuple[str, str]] = set()

    def add(self, change: _Change[_Memory], entries: Sequence[Entry]) -> bool:
        """Add a decided change; return False if it must wait for the next group."""
        request, subjects = change.request, set(map(subject_of, entries))
        if subjects & self._concerned or (request is not None and request.key in self.requests):
            return False
        self._concerned |= subjects
        self.entries += number(entries, self.first + len(self.entries))
        last = self.first + len(self.entries) - 1
        if request is not None and entries:
            self.requests[request.key] = Answered(**request._asdict(), sequence=last)
        self.outcomes.append((change, Written(last, {} if request is None else request.answer)))
        return True

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= _MOST_ENTRIES or any(kind == "label" for kind, _ in self._concerned)


class MemoryWriter(Generic[_Memory]):
    """A live memory that follows its log, and writes to it. Several threads may use it.

    Args:
        log: The log.
        memory: The memory with the entries that the log has returned already. It never changes.
        apply: Returns a new memory with further entries, the last of which belong to the commit with this id.

    Attributes:
        memory: The memory with all entries up to the last `catch_up` or `write`.
    """

    def __init__(
        self, log: MemoryLog, memory: _Memory, apply: Callable[[_Memory, Sequence[LoggedEntry], str], _Memory]
    ) -> None:
        self.log, self.memory, self._apply = log, memory, apply
        self._answered: dict[str, Answered] = {}
        self._waiting: list[_Change[_Memory]] = []
        lock, self._is_committing = threading.Lock(), False  # of `_waiting`
        self._turn, self._arrival = threading.Condition(lock), threading.Condition(lock)
        self._lock = threading.Lock()  # of `memory` and of the log
        self._group_size, self._commit_seconds = 1, 0.0  # of the last commit
        self._burst_began = self._ended = 0.0

    def catch_up(self) -> _Memory:
        """Apply the entries that other processes have appended; return the memory.

        Raises:
            MemoryLogError, StoreError: If the log cannot be read.
        """
        with self._lock:
            self._catch_up()
            return self.memory

    def answered(self, request: Request | None) -> Written | None:
        """The outcome of a request that was carried out before; None without a key that the memory knows.

        Raises:
            RepeatedKeyError: If another request had its key.
        """
        if request is None or (first := self._answered.get(request.key)) is None:
            return None
        if first.body != request.body:
            raise RepeatedKeyError(
                "Idempotency-Key: expected the request that was sent first with this key, found another one; send a "
                "new key with a new request"
            )
        return Written(first.sequence, first.answer)

    def write(self, decide: Callable[[_Memory], Sequence[Entry]], request: Request | None = None) -> Written:
        """Change the memory. When this method returns, the change is durable, and `memory` has it.

        Args:
            decide: Checks the change against a memory, and returns its entries. It raises an error to refuse the
                change. It depends on nothing but the labels of the memory, and the instances and corrections of its
                entries. It can be called several times; the last result counts.
            request: The request that makes the change. If a commit of this log after the bundle has carried it out,
                nothing changes.

        Returns:
            The outcome, or that of the first request with this key. Without entries, its sequence number is the
            present one.

        Raises:
            MemoryLogError, StoreError: If the log cannot be read or written. If a server or a disk has not answered,
                the change can be durable all the same.
            RepeatedKeyError: As in `answered`.
        """
        change = _Change(decide, request)
        with self._turn:
            self._waiting.append(change)
            self._arrival.notify()
            self._turn.wait_for(lambda: change.outcome is not None or not self._is_committing)
            if leads := change.outcome is None:
                self._is_committing = True
        if leads:
            self._lead(change)
        if isinstance(change.outcome, BaseException):
            raise change.outcome
        assert change.outcome is not None
        return change.outcome

    def _lead(self, change: _Change[_Memory]) -> None:
        """Commit waiting changes until this one has its outcome. Then another waiting thread leads."""
        try:
            with self._lock:
                while change.outcome is None:
                    self._commit_waiting()
        finally:
            with self._turn:
                self._is_committing = False
                self._turn.notify_all()

    def _commit_waiting(self) -> None:
        """Commit waiting changes, the oldest first, and remove those with an outcome from the queue."""
        with self._arrival:
            seconds = _GATHER_SHARE * self._commit_seconds
            self._arrival.wait_for(lambda: len(self._waiting) >= self._group_size, seconds)
            changes = self._waiting[:]
        try:
            self._try_commits(changes)
        except BaseException as error:
            for change in changes:
                change.outcome = change.outcome or error
            if not isinstance(error, Exception):  # such as KeyboardInterrupt, which ends this thread, too
                raise
        finally:
            del self._waiting[: sum(change.outcome is not None for change in changes)]

    def _try_commits(self, changes: list[_Change[_Memory]]) -> None:
        until = time.monotonic() + _MOST_SECONDS
        while not self._try_commit(changes):
            if time.monotonic() > until:
                raise LogConflictError(
                    f"{self.log.name}: other processes have written to the log without a pause for {_MOST_SECONDS:g} "
                    "seconds; try again later"
                )
            time.sleep(random.uniform(0, 0.1 * self._commit_seconds))

    def _try_commit(self, changes: list[_Change[_Memory]]) -> bool:
        """Commit the first of some changes; return False if another process was faster."""
        self._rest()
        began = time.monotonic()
        self._catch_up()
        group = _Group[_Memory](self.log.sequence + 1)
        for change in changes:
            try:
                written = self.answered(change.request)
                entries = [] if written else change.decide(self.memory)
            except Exception as error:
                group.outcomes.append((change, error))
                continue
            if written:
                group.outcomes.append((change, written))
            elif not group.add(change, entries) or group.is_full:
                break
        if group.entries:
            commit = self.log.append(group.entries, [*group.requests.values()])
            if commit is None:
                return False
            self._take([commit])
            self.log.advance(commit)
        for change, outcome in group.outcomes:
            change.outcome = outcome
        self._ended = time.monotonic()
        self._group_size, self._commit_seconds = len(group.outcomes), self._ended - began
        return True

    def _rest(self) -> None:
        """Give other processes a chance after a burst of commits."""
        now = time.monotonic()
        if now - self._ended > max(self._commit_seconds, _PAUSE_SECONDS):
            self._burst_began = now
        elif now - self._burst_began > _BURST_SECONDS:
            time.sleep(max(_REST_COMMITS * self._commit_seconds, _PAUSE_SECONDS))
            self._burst_began = time.monotonic()

    def _catch_up(self) -> None:
        for commits in self.log.news():
            self._take(commits)

    def _take(self, commits: Sequence[Commit]) -> None:
        entries = [entry for commit in commits for entry in commit.entries]
        self.memory = self._apply(self.memory, entries, commits[-1].id)
        for commit in commits:
            self._answered.update((request.key, request) for request in commit.requests)


def follow(log: MemoryLog, bundle: Bundle) -> MemoryWriter[Snapshot]:
    """The live memory of a bundle, for a process that does not answer queries."""
    builder = SnapshotBuilder(bundle)
    return MemoryWriter(log, builder.apply([]), lambda _, entries, commit: builder.apply(entries))
