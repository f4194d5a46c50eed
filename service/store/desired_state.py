"""The desired state of a store: reads the activation record, and replaces it on each action of an operator.

Three files are written in this order: ACTIVATION, CURRENT, LOG. The first write changes the current version. If one of
the later writes fails or the process is killed, the next action completes the files.
"""

from __future__ import annotations

from collections.abc import Callable

from recollect.service.errors import ActivationConflictError, ActivationRefusedError, StoreError
from recollect.service.storage.control_files import MAX_LOG_BYTES, ControlFiles
from recollect.service.store.activation_record import (
    ACTIVATION,
    CURRENT,
    ActivationRecord,
    activated,
    candidate_added,
    candidate_removed,
    parse_activation,
    rolled_back,
)
from recollect.service.store.audit_log import LOG, LogEntry, last_generation, missing_line, parse_log


class DesiredState:
    """The desired state of one store.

    Args:
        files: The store's small files.
    """

    def __init__(self, files: ControlFiles) -> None:
        self._files = files

    def record(self) -> ActivationRecord | None:
        """The activation record; None if no version is current.

        Raises:
            StoreError: If the record is damaged.
        """
        return self._parse(self._files.read(ACTIVATION))

    def log(self) -> list[LogEntry]:
        """All activations and rollbacks, oldest first.

        Raises:
            StoreError: If the activation record is damaged.
        """
        return parse_log(self._read_log(), self.record())

    def activate(
        self,
        version: str,
        require_published: Callable[[str], object],
        by: str,
        why: str,
        expected_generation: int | None,
    ) -> ActivationRecord:
        """Make a version current; see `Store.activate`.

        `require_published` is called under the lock, because another process may have removed the version.
        """

        def choose(content: bytes | None) -> ActivationRecord:
            require_published(version)
            before = self._before(content, or_from_log=True)
            self._require_generation(before, expected_generation)
            return activated(before, version, by, why)

        return self._replace(choose)

    def add_candidate(
        self, version: str, require_published: Callable[[str], object], by: str, why: str
    ) -> ActivationRecord:
        """Let replicas open a version beside the current one; see `Store.add_candidate`."""

        def choose(content: bytes | None) -> ActivationRecord:
            require_published(version)
            before = self._before(content)
            if before is None:
                raise ActivationRefusedError(
                    f"{self._files.name}: a candidate needs a current version, and no version is current; "
                    f"run `recollect activate {version}`"
                )
            if before.version == version:
                raise ActivationRefusedError(
                    f"{self._files.name}: the candidate must differ from the current version, found {version} for "
                    "both; choose another version"
                )
            return candidate_added(before, version, by, why)

        return self._replace(choose)

    def rollback(self, is_published: Callable[[str], bool], by: str, why: str) -> ActivationRecord:
        """Remove the candidate, or make the previous version current that is still published; see `Store.rollback`."""

        def choose(content: bytes | None) -> ActivationRecord:
            before = self._before(content)
            if before is not None and before.candidate is not None:
                return candidate_removed(before, by, why)
            if before is not None:
                for target, version in reversed(list(enumerate(before.previous))):
                    if version != before.version and is_published(version):
                        return rolled_back(before, target, by, why)
            raise ActivationRefusedError(
                f"{self._files.name}: no version was current before; choose one with `recollect activate`"
            )

        return self._replace(choose)

    def _require_generation(self, before: ActivationRecord | None, expected: int | None) -> None:
        generation = before.generation if before else 0
        if expected not in (None, generation):
            raise ActivationConflictError(
                f"{self._files.name}: expected generation {expected}, found {generation}; see `recollect log`"
            )

    def _replace(self, choose: Callable[[bytes | None], ActivationRecord]) -> ActivationRecord:
        """Write the record that `choose` returns for the content of ACTIVATION, then CURRENT and LOG."""
        with self._files.exclusive():
            record = self._write_record(choose)
            try:
                self._files.update(CURRENT, lambda _: f"{record.version}\n".encode())
                self._append_to_log(record)
            except (OSError, StoreError) as error:
                raise StoreError(
                    f"{record.version} is current, but {CURRENT} and {LOG} could not be completed: {error}; "
                    "the next activation completes them"
                ) from error
        return record

    def _write_record(self, choose: Callable[[bytes | None], ActivationRecord]) -> ActivationRecord:
        records: list[ActivationRecord] = []

        def change(content: bytes | None) -> bytes:
            records.append(choose(content))
            return records[-1].file_content()

        self._files.update(ACTIVATION, change)
        written, found = records[-1], self.record()
        if found is not None and found.generation == written.generation and found != written:
            raise ActivationConflictError(  # only at a URL whose server does not support conditional writes
                f"{self._files.name}: {found.by} activated {found.version} at the same time, which replaced the "
                f"activation of {written.version}; see `recollect log`"
            )
        return written

    def _before(self, content: bytes | None, or_from_log: bool = False) -> ActivationRecord | None:
        """The record that the next record replaces, after its line was appended to the log if it was missing.

        Its generation is at least the last one in the log, so that no generation is used twice, even if ACTIVATION was
        damaged or removed.

        Args:
            content: Content of ACTIVATION.
            or_from_log: If the record is damaged, return the last state in the log.
        """
        entries = parse_log(self._read_log())
        try:
            before = self._parse(content)
        except StoreError:
            if not or_from_log:
                raise
            before = None
        if before is None:
            last = max(entries, key=lambda entry: entry.generation, default=None)
            return ActivationRecord(generation=last.generation, version=last.to) if last else None
        self._append_to_log(before)
        return before.model_copy(update={"generation": max(before.generation, last_generation(entries))})

    def _parse(self, content: bytes | None) -> ActivationRecord | None:
        return None if content is None else parse_activation(content, f"{self._files.name}/{ACTIVATION}")

    def _append_to_log(self, record: ActivationRecord) -> None:
        self._files.append(LOG, lambda content: missing_line(content, record))

    def _read_log(self) -> bytes | None:
        return self._files.read(LOG, MAX_LOG_BYTES)
