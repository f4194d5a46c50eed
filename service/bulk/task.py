"""The task of the worker processes: the version that answers, the options, and the formats of input and output."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """All that a worker process must know to turn blocks of rows into output.

    Attributes:
        store: Folder or URL of the store.
        version: Name of the version.
        verify_key: File with public keys; None accepts unsigned bundles.
        bundle_cache: Folder for bundles of a store at a URL; None means the default.
        options: The chosen options of the answers, as the keywords of `Model.answer`.
        input_name: Name of the input, for messages.
        input_format: Name of the input's format.
        output_format: Name of the output's format.
        output_gzip: Whether the output is compressed with gzip.
        text_column: Name of the column with the texts.
        columns: Names of the columns that pass into the output; None means all fields of each JSON line.
        mark_bad_rows: Whether a row without a usable text gets an error instead of stopping the task.
    """

    store: str
    version: str
    verify_key: str | None
    bundle_cache: str | None
    options: dict[str, Any]
    input_name: str
    input_format: str
    output_format: str
    output_gzip: bool
    text_column: str
    columns: list[str] | None
    mark_bad_rows: bool

    def to_json(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Task:
        return cls(**json.loads(content))

    def facts(self) -> dict[str, Any]:
        """All that decides the content of the output, by the name of its flag."""
        left_out = {"store", "verify_key", "bundle_cache", "options", "input_name", "mark_bad_rows"}
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in own.items() if name not in left_out} | {
            name: list(value) if isinstance(value, tuple) else value for name, value in self.options.items()
        }
