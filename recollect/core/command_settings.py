"""Settings of the commands that read or operate a store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.core.options import with_options
from recollect.core.settings import (
    LIVE_HELP,
    EngineSettings,
    FileLocation,
    InputFormat,
    LiveEntries,
    Location,
    RedisSettings,
    ServiceSettings,
)


@with_options
class _QuerySettings(ServiceSettings, cli_implicit_flags=True):
    """The query, the version and the options of `recollect predict`."""

    text: CliPositionalArg[str | None] = Field(
        None, description="Text of the query; - means all lines of standard input"
    )
    version: str = Field("current", description="Version to use")
    live: LiveEntries | None = Field(None, description=LIVE_HELP)


class PredictSettings(_QuerySettings):
    """Answer one query, or all queries of a file or of standard input, without a server. A list is A,B or JSON."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON for one query")
    input: FileLocation = Field(
        None,
        description="File or URL of queries: .txt (lines), .jsonl, .csv (each also .gz) or .parquet; - means standard "
        "input",
    )
    output: FileLocation = Field(
        None,
        description="File or URL to write: .jsonl, .csv (each also .gz) or .parquet (default: JSON lines on standard "
        "output)",
    )
    input_format: InputFormat | None = Field(
        None, description="Format of --input (default: by the suffix; text for standard input)"
    )
    text_column: str = Field("text", description="Column of the input with the texts")
    columns: list[str] | None = Field(
        None, description="Columns of the input that pass into the output: A,B (default: all)"
    )
    bad_rows: Literal["stop", "mark"] = Field(
        "stop", description="Treatment of a row without a usable text: stop, or mark (answer with an error in the row)"
    )
    overwrite: CliImplicitFlag[bool] = Field(
        False, description="Replace the output, and start an unfinished task again instead of continuing it"
    )
    workers: int = Field(
        0, ge=0, le=1024, description="Processes or tasks of Ray that answer --input; 0 means one for each core"
    )
    ray: str | None = Field(
        None,
        description="Answer --input with tasks of the Ray cluster at HOST:PORT; auto or no value: the cluster of which "
        "this machine is a node (default: no Ray)",
    )


class VersionsSettings(ServiceSettings):
    """List the versions in a store, oldest first."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


class LogSettings(ServiceSettings):
    """List all activations and rollbacks of a store, the newest last: time in UTC, generation, versions and user."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


class _PositionalStore(ServiceSettings):
    store: CliPositionalArg[Location] = Field(description="Bundle store: a folder, or a URL such as s3://bucket/store")


class MemorySettings(_PositionalStore):
    """Show the live memory of a store: the entries that were added since the current version was built."""

    json_: CliImplicitFlag[bool] = Field(False, validation_alias="json", description="Print JSON")


class ExtendSettings(_PositionalStore):
    """Add instances and labels to the live memory of a store, and remove some, without a server.

    All lines are checked before anything is written. The texts are encoded with the encoder of the current version.
    """

    add: Path | None = Field(
        None,
        description='File of JSON lines: instances {"uid", "text", "labels", "weight"?} and labels {"uid", "text"}; '
        "an existing uid is replaced",
    )
    remove: Path | None = Field(
        None, description='File of JSON lines, {"instance": UID} or {"label": UID}; removed before --add is added'
    )


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
        False,
        description="Keep the current version; only requests with the header X-Index-Version get the version",
    )


class RollbackSettings(SwitchSettings):
    """Remove the candidate; without a candidate, make the version current that was current before."""


class VerifySettings(ServiceSettings):
    """Check a version: signature, manifest, SHA-256 of every file, and answers to its golden queries."""

    version: CliPositionalArg[str] = Field(
        description="Version from `recollect versions`, or the word current for the current version"
    )


class ExportSettings(_PositionalStore):
    """Write the memory of a version, with its live entries, as a dataset folder, which `recollect train` reads."""

    out: Path = Field(description="Dataset folder to write; must be absent or empty")
    version: str = Field("current", description="Version to export")


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
