"""The commands of the service. Each command imports its modules when it runs, so that `--help` is fast."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from recollect.core import extras
from recollect.core.command_settings import (
    ActivateSettings,
    CopySettings,
    ExportSettings,
    ExtendSettings,
    LogSettings,
    MemorySettings,
    PredictSettings,
    PruneSettings,
    RollbackSettings,
    SwitchSettings,
    VerifySettings,
    VersionsSettings,
)
from recollect.core.errors import SettingsError
from recollect.core.options import chosen_options
from recollect.core.settings import ServiceSettings
from recollect.core.system.console import print_line, print_status
from recollect.service.settings import ServeSettings

if TYPE_CHECKING:
    from recollect.service.versions.reports import Reports
    from recollect.store.activations import ActivationRecord
    from recollect.store.store import Store


def serve(settings: ServeSettings) -> int:
    from recollect.service.process.server import serve as serve_http

    return serve_http(settings)


def predict(settings: PredictSettings) -> None:
    if settings.text == "-" or settings.input is not None:
        from recollect.bulk.job import predict_file

        predict_file(settings)
    else:
        _predict_one(settings)


def _predict_one(settings: PredictSettings) -> None:
    from pydantic_core import to_json

    from recollect.core.search.filters import describe_unknown
    from recollect.model import open_model

    if settings.text is None:
        raise SettingsError("expected a text, or --input; see `recollect predict --help`")
    if settings.output is not None:
        raise SettingsError("--output: expected --input, or - for the lines of standard input, found one query")
    model = open_model(settings.store, settings.version, settings.verify_key, settings.bundle_cache, live=settings.live)
    options = chosen_options(settings)
    (answer,) = model.answer([settings.text], **options)
    for message in describe_unknown(model.resolve(**options), model.predictor.memory.labels):
        print_status(message)
    if settings.json_:
        print_line(to_json({"version": model.version, "sequence": model.sequence, **answer.to_dict()}).decode())
        return
    if answer.truncated:
        print_status(f"the query is longer than the {model.manifest.encoder.max_length} tokens that the encoder reads")
    for label in answer.labels:
        probability = "" if label.probability is None else f"{label.probability:6.1%}  "
        text = f"  {label.text}" if label.text != label.uid else ""
        print_line(f"{probability}{label.score:.4f}  {label.uid}{text}")
        for reason in label.because or []:
            kind = f"{reason.kind} by {reason.by}" if reason.by else reason.kind
            print_line(f"    {reason.share:.4f}  {kind}  {reason.uid}  {reason.text}")
        for term in label.ranked_by or []:
            value = "" if term.value is None else f"  {term.value:g}"
            print_line(f"    {term.log_odds:+.4f}  log-odds by {term.feature}{value}")


def versions(settings: VersionsSettings) -> None:
    from recollect.core.errors import BundleError, StoreError

    store = _store(settings)
    store.require()
    rows = []
    try:
        record = store.activation()
    except StoreError as error:  # the list still shows which versions can be activated
        record = None
        print_status(str(error))
    current, generation = (record.version, record.generation) if record else (None, None)
    candidate = record.candidate if record else None
    for version in store.versions():
        row: dict[str, Any] = {
            "version": version,
            "current": version == current,
            "candidate": version == candidate,
        }
        try:
            manifest = store.manifest(version)
        except BundleError as error:
            row["problem"] = str(error)
        else:
            row |= {
                "created": manifest.created.isoformat(),
                "instances": manifest.counts.instances,
                "labels": manifest.counts.labels,
                "dim": manifest.dim,
                "index": manifest.index.instances.kind,
                "precision": manifest.encoder.precision,
                "size": manifest.size_bytes,
            }
        rows.append(row)
    if settings.json_:
        facts = {"current": current, "generation": generation, "candidate": candidate, "versions": rows}
        print_line(json.dumps(facts))
        return
    for row in rows:
        mark = "* " if row["current"] else "~ " if row["candidate"] else "  "
        print_line(f"{mark}{row['version']}  {_summary(row)}{'  (candidate)' if row['candidate'] else ''}")


def log(settings: LogSettings) -> None:
    store = _store(settings)
    store.require()
    records = store.log()
    if settings.json_:
        fields = {"at", "generation", "action", "candidate", "by", "host", "why"}
        entries = [
            record.model_dump(mode="json", include=fields) | {"from": record.replaced, "to": record.version}
            for record in records
        ]
        print_line(json.dumps({"log": entries}))
        return
    if not records:
        print_status(f"{store.name}: no activation is logged yet")
    for record in records:
        change = f"{record.replaced} -> {record.version}" if record.replaced else record.version
        if record.candidate:
            change = f"{record.version}, {record.candidate} as candidate"
        elif record.action == "rollback" and record.replaced == record.version:
            change = f"{record.version}, without the candidate"
        why = f"  {record.why}" if record.why else ""
        print_line(f"{record.at:%Y-%m-%d %H:%M:%S}  {record.generation}  {record.action}  {change}  {record.by}{why}")


def memory(settings: MemorySettings) -> None:
    import time
    from collections import Counter
    from datetime import UTC, datetime

    from recollect.core.tables.entries import Remove, subject_of
    from recollect.edits.log import MemoryLog

    store = _store(settings)
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
        print_line(json.dumps(facts))
        return
    print_line("version {version}, sequence {sequence:,}, {size_bytes:,} bytes".format(**facts))
    print_line("added:   {instances:,} instances, {labels:,} labels, {corrections} corrections".format(**facts))
    print_line("removed: {removed_instances:,} instances, {removed_labels:,} labels".format(**facts))
    if oldest is not None and age is not None:
        since = datetime.fromtimestamp(oldest, UTC)
        print_line(f"entries: {len(entries):,}, the oldest of {since:%Y-%m-%d %H:%M:%S}, {_age(age)} ago")


def extend(settings: ExtendSettings) -> None:
    from recollect.edits.extend import extend as extend_memory

    done = extend_memory(settings)
    if done.unknown:
        print_status(f"uids to remove that are not in the memory: {len(done.unknown):,}, such as {done.unknown[0]}")
    print_line(
        f"added instances: {done.instances:,}, added labels: {done.labels:,}, removed: {done.removed:,}, "
        f"sequence: {done.sequence}"
    )


def activate(settings: ActivateSettings) -> None:
    store = _store(settings)
    reports = _reports(settings, store)
    record = store.activate(settings.version, settings.candidate, settings.by, settings.why)
    _report_switch(settings, store, reports, record)


def rollback(settings: RollbackSettings) -> None:
    store = _store(settings)
    reports = _reports(settings, store)
    _report_switch(settings, store, reports, store.rollback(settings.by, settings.why))


def verify(settings: VerifySettings) -> None:
    from recollect.core.golden import check_golden
    from recollect.model import open_model

    model = open_model(settings.store, settings.version, settings.verify_key, settings.bundle_cache, live="off")
    share, files = check_golden(model.predictor), len(model.manifest.files)
    signed = "signed, " if settings.verify_key else ""
    print_line(
        f"{model.version}: {signed}{files} files as published; {share:.1%} of the golden labels are among the answers"
    )


def prune(settings: PruneSettings) -> None:
    from recollect.edits.log import prune_log

    store = _store(settings)
    reports = _reports(settings, store)

    def in_use() -> set[str]:
        return {version for report in reports.read() for version in report.open}

    pruned_versions, size_bytes = set[str](), 0
    dropping: Any = contextlib.nullcontext(lambda version: None)
    if not settings.dry_run and (engines := store.engines()):
        dropping = extras.load("key engine", "milvus").dropping(settings, engines)
    with dropping as drop_keys:
        for version, size in store.prune(settings.keep, in_use, settings.dry_run):
            drop_keys(version)
            print_line(f"{version}  {size:,} bytes")
            pruned_versions.add(version)
            size_bytes += size
    verb = "would remove" if settings.dry_run else "removed"
    print_status(f"{verb} {len(pruned_versions)} versions, {size_bytes:,} bytes")
    if settings.memory_log:
        print_status(f"{verb} {prune_log(store, pruned_versions, settings.dry_run):,} commits of the memory log")


def copy(settings: CopySettings) -> None:
    from recollect.edits.log import MEMORY, copy_log
    from recollect.store.store import Store

    store, target = _store(settings), Store(settings.to, settings.verify_key, settings.bundle_cache)
    version = store.resolve(settings.version)
    store.manifest(version)  # a version that is not published is refused before anything is copied
    if settings.memory_log:  # before the version, because its replicas need the entries
        print_status(f"copied {copy_log(store, target):,} entries of the memory log")
    elif store.files.can_list and store.files.names(MEMORY):
        print_status(f"{store.name} has a live memory, which is not copied; copy it with --memory-log")
    if not store.copy(version, target):
        print_status(f"{target.name} contains the same bundle already")
    print_line(version)


def export(settings: ExportSettings) -> None:
    from recollect.edits.export import export_version

    instances, labels, sequence = export_version(settings)
    last = f", with the live entries up to {sequence}" if sequence else ""
    print_line(f"{settings.out}: {instances:,} instances, {labels:,} labels{last}")


def _store(settings: ServiceSettings) -> Store:
    from recollect.store.store import Store

    return Store(settings.store, settings.verify_key, settings.bundle_cache)


def _reports(settings: SwitchSettings | PruneSettings, store: Store) -> Reports:
    from recollect.service.redis_client import RedisClient
    from recollect.service.versions.reports import reports_of

    return reports_of(store, RedisClient.of(settings))


def _report_switch(settings: SwitchSettings, store: Store, reports: Reports, record: ActivationRecord) -> None:
    if settings.wait:
        from recollect.service.versions.reports import wait_for_replicas

        if "://" in str(settings.store) and settings.redis_url is None and settings.replicas is None:
            print_status("without --redis-url, only the replicas of this machine are seen; use --redis-url")
        for report in wait_for_replicas(store, reports, record, settings.wait_seconds, settings.replicas):
            candidate = f", and has {record.candidate} open" if record.candidate else ""
            print_status(f"{report.replica} serves {report.version}{candidate}")
    print_line(record.candidate or record.version)


def _summary(row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"broken: {row['problem']}"
    return (
        f"{row['instances']:,} instances  {row['labels']:,} labels  {row['index']}  {row['precision']}  "
        f"{row['size'] / 1e6:,.0f} MB"
    )


def _age(seconds: float) -> str:
    """A time span with its largest unit."""
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds"
