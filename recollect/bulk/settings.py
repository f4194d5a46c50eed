"""Settings of `recollect predict`, which answers one query, or all queries of a file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from recollect.core.options import with_options
from recollect.core.settings import (
    LIVE_HELP,
    FileLocation,
    InputFormat,
    LiveEntries,
    ReadIf,
    ServiceSettings,
    refuse_unread,
)


@with_options
class _QuerySettings(ServiceSettings, cli_implicit_flags=True):
    """The query, the version and the options of `recollect predict`."""

    text: CliPositionalArg[str | None] = Field(
        None, description="Text of the query; - means all lines of standard input"
    )
    version: str = Field("current", description="Version to use")
    live: LiveEntries | None = Field(None, description=LIVE_HELP)


def _without_votes(settings: Any) -> str | None:
    """What is given in place of the printed votes of one query."""
    if settings.input is not None or settings.text == "-":
        return "--input" if settings.input is not None else "-"
    return "--json" if settings.json_ else None if settings.explain else "no --explain"


class PredictSettings(_QuerySettings):
    """Answer one query, or all queries of a file or of standard input, without a server. A list is A,B or JSON."""

    read_if = (ReadIf(("all_votes",), "--explain for one query, without --json", _without_votes),)
    _refuse_unread = model_validator(mode="after")(refuse_unread)

    all_votes: CliImplicitFlag[bool] = Field(
        False,
        description="Print every vote for each label, and every term of its log-odds, with --explain; otherwise the "
        "greatest 12 and 5",
    )
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
    vector_column: str | None = Field(
        None,
        description="Column of the input with vectors in place of texts: lists of numbers in Parquet or JSON lines, in "
        "the space of the keys of the version",
    )
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
