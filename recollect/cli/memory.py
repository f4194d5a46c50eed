"""The verbs of the live memory of a store. A verb imports its libraries when it runs."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.cli.versions import open_store
from recollect.core.settings import Location, ServiceSettings, TableSettings
from recollect.core.system.console import print_status


class _PositionalStore(ServiceSettings):
    store: CliPositionalArg[Location] = Field(description="Bundle store: a folder, or a URL such as s3://bucket/store")


class MemorySettings(_PositionalStore):
    """Show the live memory of a store: the entries that were added since the current version was built."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


def memory(settings: MemorySettings) -> list[str]:
    import time
    from collections import Counter
    from datetime import UTC, datetime

    from recollect.core.tables.entries import Remove, subject_of
    from recollect.edits.log import MemoryLog

    store = open_store(settings)
    manifest = store.manifest(store.require_current())
    log = MemoryLog.of(store, manifest)
    entries = log.read()
    # The last entry of each instance, label and correction decides.
    last = {subject_of(logged.entry): not isinstance(logged.entry, Remove) for logged in entries}
    count = Counter((kind, put) for (kind, _), put in last.items())
    oldest = min((logged.seconds for logged in entries), default=None)
    age = None if oldest is None else max(0.0, time.time() - oldest)
    facts = {
        "version": manifest.version,
        "sequence": log.sequence,
        "size_bytes": log.size_bytes,
        "entries": len(entries),
        "instances": count["instance", True],
        "labels": count["label", True],
        "removed_instances": count["instance", False],
        "removed_labels": count["label", False],
        "corrections": count["correction", True],
        "oldest": None if oldest is None else datetime.fromtimestamp(oldest, UTC).isoformat(),
        "oldest_age_seconds": age,
    }
    if settings.json_:
        return [json.dumps(facts)]
    lines = [
        "version {version}, sequence {sequence:,}, {size_bytes:,} bytes".format(**facts),
        "added:   {instances:,} instances, {labels:,} labels, {corrections} corrections".format(**facts),
        "removed: {removed_instances:,} instances, {removed_labels:,} labels".format(**facts),
    ]
    if oldest is not None and age is not None:
        since = datetime.fromtimestamp(oldest, UTC)
        lines.append(f"entries: {len(entries):,}, the oldest of {since:%Y-%m-%d %H:%M:%S}, {_age(age)} ago")
    return lines


def _age(seconds: float) -> str:
    """A time span with its largest unit."""
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds"


class ExtendSettings(_PositionalStore, TableSettings):
    """Add instances and labels to the live memory of a store, and remove some, without a server.

    All lines are checked before anything is written. The texts are encoded with the encoder of the current version.
    """

    add: Path | None = Field(
        None,
        description='File of JSON lines: instances {"uid", "text", "labels", ...} and labels {"uid", "text"}, with the '
        "fields that the HTTP interface takes; or a table as that of the training (.csv, .tsv, .jsonl, .parquet); an "
        "existing uid is replaced",
    )
    remove: Path | None = Field(
        None, description='File of JSON lines, {"instance": UID} or {"label": UID}; removed before --add is added'
    )


def extend(settings: ExtendSettings) -> str:
    from recollect.edits.extend import extend as extend_memory

    store = open_store(settings)
    command = ["recollect", "extend", store.name, "--add", str(settings.add)]
    done = extend_memory(store, settings.add, settings.remove, settings, command)
    if done.unknown:
        print_status(f"uids to remove that are not in the memory: {len(done.unknown):,}, such as {done.unknown[0]}")
    return (
        f"added instances: {done.instances:,}, added labels: {done.labels:,}, removed: {done.removed:,}, "
        f"sequence: {done.sequence}"
    )


class ExportSettings(_PositionalStore):
    """Write the memory of a version, with its live entries, as a dataset folder, which `recollect train` reads."""

    out: Path = Field(description="Dataset folder to write; must be absent or empty")
    version: str = Field("current", description="Version to export")


def export(settings: ExportSettings) -> str:
    from recollect.edits.export import export_version

    instances, labels, sequence = export_version(open_store(settings), settings.version, settings.out)
    last = f", with the live entries up to {sequence}" if sequence else ""
    return f"{settings.out}: {instances:,} instances, {labels:,} labels{last}"
