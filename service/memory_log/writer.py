"""Group commit: the threads of a process change a live memory together, with one lock, one group and one flush.

The first thread that finds no commit in progress commits the changes of all waiting threads. All changes of a group are
decided on the memory before the group, and the memory gets them after they are durable. So that the result equals that
of one change after the other, a change of a label is the last one in its group, and no two changes of a group concern
the same instance or correction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from recollect.service.errors import LogConflictError
from recollect.service.memory.entries import Entry, LoggedEntry, subject_of
from recollect.service.memory_log.log import MemoryLog, number

# A group with so many entries gets no further change. The changes that wait then are committed in the next group.
_MOST_ENTRIES = 2_000
# Commits that are tried again because another process was faster, at a store without locks.
_ATTEMPTS = 50

_Memory = TypeVar("_Memory")


class _Change(Generic[_Memory]):
    """A waiting change, and its outcome: its last sequence number, or an error."""

    def __init__(self, decide: Callable[[_Memory], Sequence[Entry]]) -> None:
        self.decide = decide
        self.sequence: int | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.sequence is not None or self.error is not None


class MemoryWriter(Generic[_Memory]):
    """A live memory that follows its log, and writes to it. Several threads may use it.

    Args:
        log: The log, of which nothing was read yet.
        memory: The memory without the log's entries. It never changes.
        apply: Returns a new memory with further entries.

    Attributes:
        memory: The memory with all entries up to the last `catch_up` or `write`.
    """

    def __init__(
        self, log: MemoryLog, memory: _Memory, apply: Callable[[_Memory, Sequence[LoggedEntry]], _Memory]
    ) -> None:
        self.log, self.memory, self._apply = log, memory, apply
        self._waiting: list[_Change[_Memory]] = []
        self._unapplied: list[LoggedEntry] = []  # entries of the log, for the next call if `apply` fails
        self._turn, self._is_committing = threading.Condition(), False
        self._lock = threading.Lock()  # of `memory` and of the log

    def catch_up(self) -> _Memory:
        """Apply the entries that other processes have appended; return the memory.

        Raises:
            MemoryLogError, StoreError, OSError: If the log cannot be read.
        """
        with self._lock:
            self._catch_up(self.log.read())
            return self.memory

    def write(self, decide: Callable[[_Memory], Sequence[Entry]]) -> int:
        """Change the memory. When this method returns, the change is durable, and `memory` has it.

        Args:
            decide: Checks the change against a memory, and returns its entries. It raises an error to refuse the
                change. It depends on nothing but the labels of the memory, and the instances and corrections of its
                entries. It can be called several times; the last result counts.

        Returns:
            Sequence number of the last entry; the memory's present one if `decide` returns no entries.

        Raises:
            MemoryLogError, StoreError, OSError: If the log cannot be read or written. Then nothing has changed.
        """
        change = _Change(decide)
        with self._turn:
            self._waiting.append(change)
            self._turn.wait_for(lambda: change.done or not self._is_committing)
            if leads := not change.done:
                self._is_committing = True
        if leads:
            self._lead(change)
        if change.error is not None:
            raise change.error
        assert change.sequence is not None
        return change.sequence

    def _lead(self, change: _Change[_Memory]) -> None:
        """Commit waiting changes until this one has its outcome. Then another waiting thread leads."""
        try:
            with self._lock:
                while not change.done:
                    self._commit_waiting()
        finally:
            with self._turn:
                self._is_committing = False
                self._turn.notify_all()

    def _commit_waiting(self) -> None:
        """Commit waiting changes, the oldest first, and remove those with an outcome from the queue."""
        changes = self._waiting[:]
        try:
            self._try_commits(changes)
        except BaseException as error:
            for change in changes:
                change.error = change.error or error
            if not isinstance(error, Exception):  # such as KeyboardInterrupt, which ends this thread, too
                raise
        finally:
            del self._waiting[: sum(change.done for change in changes)]

    def _try_commits(self, changes: list[_Change[_Memory]]) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            for change in changes:
                change.error = None
            try:
                self._try_commit(changes)
                return
            except LogConflictError:
                if attempt == _ATTEMPTS:
                    raise

    def _try_commit(self, changes: list[_Change[_Memory]]) -> None:
        with self.log.exclusive() as section:
            self._catch_up(section.others)
            entries: list[LoggedEntry] = []
            decided: list[tuple[_Change[_Memory], int]] = []
            concerned: set[tuple[str, str]] = set()
            for change in changes:
                try:
                    own = change.decide(self.memory)
                except Exception as error:
                    change.error = error
                    continue
                subjects = set(map(subject_of, own))
                if subjects & concerned:
                    break
                concerned |= subjects
                entries += number(own, section.next_sequence + len(entries))
                decided.append((change, section.next_sequence + len(entries) - 1))
                if len(entries) >= _MOST_ENTRIES or any(kind == "label" for kind, _ in subjects):
                    break
            section.append(entries)
        self._catch_up(entries)
        for change, sequence in decided:
            change.sequence = sequence

    def _catch_up(self, entries: list[LoggedEntry]) -> None:
        self._unapplied += entries
        if self._unapplied:
            self.memory = self._apply(self.memory, self._unapplied)
            self._unapplied = []
