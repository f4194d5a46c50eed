"""The verbs that read or change the versions of a store. A verb imports its libraries when it runs."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.core import extras
from recollect.core.errors import BundleError, StoreError
from recollect.core.settings import EngineSettings, Location, RedisSettings, ServiceSettings
from recollect.core.system.console import print_line, print_status

if TYPE_CHECKING:
    from recollect.service.versions.reports import Reports
    from recollect.store.activations import ActivationRecord
    from recollect.store.store import Store


class VersionsSettings(ServiceSettings):
    """List the versions in a store, oldest first."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


def versions(settings: VersionsSettings) -> list[str]:
    store = open_store(settings)
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
        row: dict[str, Any] = {"version": version, "current": version == current, "candidate": version == candidate}
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
        return [json.dumps(facts)]
    return [*map(_line, rows)]


def _line(row: dict[str, Any]) -> str:
    if "problem" in row:
        summary = f"broken: {row['problem']}"
    else:
        summary = (
            f"{row['instances']:,} instances  {row['labels']:,} labels  {row['index']}  {row['precision']}  "
            f"{row['size'] / 1e6:,.0f} MB"
        )
    mark = "* " if row["current"] else "~ " if row["candidate"] else "  "
    return f"{mark}{row['version']}  {summary}{'  (candidate)' if row['candidate'] else ''}"


class LogSettings(ServiceSettings):
    """List all activations and rollbacks of a store, the newest last: time in UTC, generation, versions and user."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


def log(settings: LogSettings) -> list[str]:
    store = open_store(settings)
    store.require()
    records = store.log()
    if settings.json_:
        fields = {"at", "generation", "action", "candidate", "by", "host", "why"}
        entries = [
            record.model_dump(mode="json", include=fields) | {"from": record.replaced, "to": record.version}
            for record in records
        ]
        return [json.dumps({"log": entries})]
    if not records:
        print_status(f"{store.name}: no activation is logged yet")
    lines = []
    for record in records:
        change = f"{record.replaced} -> {record.version}" if record.replaced else record.version
        if record.candidate:
            change = f"{record.version}, {record.candidate} as candidate"
        elif record.action == "rollback" and record.replaced == record.version:
            change = f"{record.version}, without the candidate"
        why = f"  {record.why}" if record.why else ""
        lines.append(f"{record.at:%Y-%m-%d %H:%M:%S}  {record.generation}  {record.action}  {change}  {record.by}{why}")
    return lines


class SwitchSettings(RedisSettings):
    """Settings of the commands that change the current version of a store."""

    wait: CliImplicitFlag[bool] = Field(
        False, description="Wait until every replica has opened the version; if one does not, fail and print its name"
    )
    wait_seconds: float = Field(
        60.0, gt=0, le=86_400, description="Maximum seconds to wait for the replicas (with --wait)"
    )
    replicas: int | None = Field(
        None,
        ge=1,
        description="Number of replicas that must open the version (with --wait); every worker process is a replica "
        "(default: all replicas that report)",
    )
    by: str | None = Field(
        None, min_length=1, max_length=200, description="User, for the log (default: user and host name)"
    )
    why: str = Field("", max_length=1000, description="Reason, for the log")


class ActivateSettings(SwitchSettings):
    """Make a version current, or let all replicas open it beside the current one."""

    version: CliPositionalArg[str] = Field(description="Version from `recollect versions`")
    candidate: CliImplicitFlag[bool] = Field(
        False, description="Keep the current version; only requests with the header X-Index-Version get the version"
    )


def activate(settings: ActivateSettings) -> str:
    store = open_store(settings)
    reports = _reports(settings, store)
    record = store.activate(settings.version, settings.candidate, settings.by, settings.why)
    return _report_switch(settings, store, reports, record)


class RollbackSettings(SwitchSettings):
    """Remove the candidate; without a candidate, make the version current that was current before."""


def rollback(settings: RollbackSettings) -> str:
    store = open_store(settings)
    reports = _reports(settings, store)
    return _report_switch(settings, store, reports, store.rollback(settings.by, settings.why))


def _report_switch(settings: SwitchSettings, store: Store, reports: Reports, record: ActivationRecord) -> str:
    if settings.wait:
        from recollect.service.versions.reports import wait_for_replicas

        if "://" in str(settings.store) and settings.redis_url is None and settings.replicas is None:
            print_status("without --redis-url, only the replicas of this machine are seen; use --redis-url")
        for report in wait_for_replicas(store, reports, record, settings.wait_seconds, settings.replicas):
            candidate = f", and has {record.candidate} open" if record.candidate else ""
            print_status(f"{report.replica} serves {report.version}{candidate}")
    return record.candidate or record.version


class VerifySettings(ServiceSettings):
    """Check a version: signature, manifest, SHA-256 of every file, and answers to its golden queries."""

    version: CliPositionalArg[str] = Field(
        description="Version from `recollect versions`, or the word current for the current version"
    )


def verify(settings: VerifySettings) -> str:
    from recollect.core.golden import check_golden
    from recollect.model import open_model

    model = open_model(settings.store, settings.version, settings.verify_key, settings.bundle_cache, live="off")
    share, files = check_golden(model.predictor), len(model.manifest.files)
    signed = "signed, " if settings.verify_key else ""
    return (
        f"{model.version}: {signed}{files} files as published; {share:.1%} of the golden labels are among the answers"
    )


class CopySettings(ServiceSettings):
    """Copy a version to another store, and verify every file on the way. The copy does not become current.

    A copy that was interrupted can be started again. A version that the other store contains is never overwritten.
    """

    version: CliPositionalArg[str] = Field(
        description="Version from `recollect versions`, or the word current for the current version"
    )
    to: Location = Field(description="Store that receives the version: a folder, or a URL such as s3://bucket/store")
    memory_log: CliImplicitFlag[bool] = Field(
        False,
        description="First copy the log of the live memory, or continue an earlier copy; every version of the other "
        "store then has these entries",
    )


def copy(settings: CopySettings) -> str:
    from recollect.edits.log import MEMORY, copy_log
    from recollect.store.store import Store

    store, target = open_store(settings), Store(settings.to, settings.verify_key, settings.bundle_cache)
    version = store.resolve(settings.version)
    store.manifest(version)  # a version that is not published is refused before anything is copied
    if settings.memory_log:  # before the version, because its replicas need the entries
        print_status(f"copied {copy_log(store, target):,} entries of the memory log")
    elif store.files.can_list and store.files.names(MEMORY):
        print_status(f"{store.name} has a live memory, which is not copied; copy it with --memory-log")
    if not store.copy(version, target):
        print_status(f"{target.name} contains the same bundle already")
    return version


class PruneSettings(RedisSettings, EngineSettings):
    """Remove old versions from a store.

    The current version, the candidate, the target of a rollback, and versions that a replica has open are kept. With
    --redis-url, the replicas' reports are read from Redis, otherwise from the store's folder. The collections of
    removed versions in Milvus are dropped.
    """

    keep: int = Field(ge=1, description="Number of the newest versions to keep in any case")
    dry_run: CliImplicitFlag[bool] = Field(False, description="Print the versions to remove, but remove nothing")
    memory_log: CliImplicitFlag[bool] = Field(
        False,
        description="Also remove the commits of the memory log that no remaining version needs; "
        "a later `recollect build` from data without these entries then needs --memory-sequence",
    )


def prune(settings: PruneSettings) -> None:
    from recollect.edits.log import prune_log

    store = open_store(settings)
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


def open_store(settings: ServiceSettings) -> Store:
    from recollect.store.store import Store

    return Store(settings.store, settings.verify_key, settings.bundle_cache)


def _reports(settings: SwitchSettings | PruneSettings, store: Store) -> Reports:
    from recollect.service.redis_client import RedisClient
    from recollect.service.versions.reports import reports_of

    return reports_of(store, RedisClient.of(settings))
