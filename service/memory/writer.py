"""Group commit: the threads of a process change a live memory together, with one lock, one group and one flush.

The first thread that finds no commit in progress commits the changes of all waiting threads. Each change is decided on
the memory that has all changes before it. The memory that readers see gets the changes after they are durable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from service.errors import LogConflictError
from service.memory.entries import Entry, LoggedEntry
from service.memory.log import MemoryLog, number

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
        self._others: list[LoggedEntry] = []  # entries that were read and not applied yet
        self._commit = threading.Lock()

    def catch_up(self) -> _Memory:
        """Apply the entries that other processes have appended; return the memory.

        Raises:
            MemoryLogError, StoreError, OSError: If the log cannot be read.
        """
        with self._commit:
            self._catch_up(self.log.read())
            return self.memory

    def write(self, decide: Callable[[_Memory], Sequence[Entry]]) -> int:
        """Change the memory. When this method returns, the change is durable, and `memory` has it.

        Args:
            decide: Checks the change against a memory, and returns its entries. It raises an error to refuse the
                change. It is called again if another process has changed the memory meanwhile.

        Returns:
            Sequence number of the last entry; the memory's present one if `decide` returns no entries.

        Raises:
            MemoryLogError, StoreError, OSError: If the log cannot be read or written. Then nothing has changed.
        """
        change = _Change(decide)
        self._waiting.append(change)
        with self._commit:
            while not change.done:
                self._commit_waiting()
        if change.error is not None:
            raise change.error
        assert change.sequence is not None
        return change.sequence

    def _commit_waiting(self) -> None:
        """Commit waiting changes, the oldest first, and remove them from the queue with their outcome."""
        changes = self._waiting[:]
        for attempt in range(1, _ATTEMPTS + 1):
            for change in changes:
                change.error = None
            try:
                self._try_commit(changes)
                break
            except LogConflictError as error:
                if attempt == _ATTEMPTS:
                    _fail(changes, error)
            except BaseException as error:
                _fail(changes, error)
                if not isinstance(error, Exception):  # such as KeyboardInterrupt, which ends this thread, too
                    raise
                break
        del self._waiting[: sum(change.done for change in changes)]

    def _try_commit(self, changes: list[_Change[_Memory]]) -> None:
        with self.log.exclusive() as section:
            self._catch_up(section.others)
            memory, entries = self.memory, list[LoggedEntry]()
            decided: list[tuple[_Change[_Memory], int]] = []
            for change in changes:
                if len(entries) >= _MOST_ENTRIES:
                    break
                try:
                    own = number(change.decide(memory), section.next_sequence + len(entries))
                    memory = self._apply(memory, own) if own else memory
                except Exception as error:
                    change.error = error
                else:
                    entries += own
                    decided.append((change, section.next_sequence + len(entries) - 1))
            section.append(entries)
        self.memory = memory
        for change, sequence in decided:
            change.sequence = sequence

    def _catch_up(self, others: list[LoggedEntry]) -> None:
        self._others += others
        if self._others:
            self.memory = self._apply(self.memory, self._others)
            self._others = []


def _fail(changes: Sequence[_Change[_Memory]], error: BaseException) -> None:
    for change in changes:
        change.error = change.error or error
