"""The audit log of a store: the file LOG with one JSON line for each activation and rollback.

The line of an action is appended after its activation record is written. If the process is killed between the two
steps, the next action first appends the missing line.
"""

from __future__ import annotations

import json
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recollect.service.store.activation_record import MAX_GENERATION, ActivationRecord, Version

LOG = "LOG"


class LogEntry(BaseModel):
    """One activation or rollback."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    at: datetime
    generation: int = Field(ge=1, le=MAX_GENERATION)
    action: str
    from_: Version | None = Field(alias="from", description="the version that was current before")
    to: Version = Field(description="the version that became current")
    candidate: Version | None = Field(None, description="the candidate that the action added")
    by: str = Field(description="the user who started the action")
    why: str = Field(description="the reason that the user gave")


def parse_log(content: bytes | None, record: ActivationRecord | None = None) -> list[LogEntry]:
    """The entries of the log, oldest first. A damaged line is skipped.

    Args:
        content: Content of the file LOG; None if there is no such file.
        record: The activation record. If the log lacks its line, its entry is the last one.
    """
    entries = []
    for line in (content or b"").splitlines():
        try:
            entries.append(LogEntry.model_validate_json(line))
        except ValidationError:  # the writer was killed within the line
            continue
    if (
        record is not None
        and (missing := _entry_of(record)) is not None
        and missing.generation > last_generation(entries)
    ):
        entries.append(missing)
    return entries


def last_generation(entries: list[LogEntry]) -> int:
    """The highest generation in the log; 0 if the log is empty."""
    return max((entry.generation for entry in entries), default=0)


def missing_line(content: bytes | None, record: ActivationRecord) -> bytes:
    """The bytes to append to the log so that it contains the record's entry; empty if it contains the entry."""
    entry = _entry_of(record)
    if entry is None or entry.generation <= last_generation(parse_log(content)):
        return b""
    line = (
        json.dumps(
            entry.model_dump(mode="json", by_alias=True, exclude=None if entry.candidate else {"candidate"})
        ).encode()
        + b"\n"
    )
    return line if not content or content.endswith(b"\n") else b"\n" + line


def _entry_of(record: ActivationRecord) -> LogEntry | None:
    """The log entry of a record; None if no action wrote the record."""
    if record.at is None or record.generation == 0:
        return None
    return LogEntry(
        at=record.at,
        generation=record.generation,
        action=record.action,
        from_=record.replaced,
        to=record.version,
        candidate=record.candidate,
        by=record.by,
        why=record.why,
    )
