"""Parquet files as output.

A worker writes a block as an Arrow stream. The streams of all blocks are appended to one file, which becomes a Parquet
file at the end: a Parquet file without its end cannot be continued after a kill.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recollect.service.bulk.parquet_input import to_stream
from recollect.service.bulk.rows import Rows, as_text
from recollect.service.bulk.task import Task
from recollect.service.predictor.answers import Answer

# A row group of the output has at least so many rows or bytes, except the last one.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 << 20

_TEXTS = [("uid", pa.string()), ("text", pa.string())]
_LABEL = [*_TEXTS, ("score", pa.float64()), ("probability", pa.float64())]
_REASON = [("kind", pa.string()), *_TEXTS, ("share", pa.float64()), ("by", pa.string())]
_LOGIT_TERM = [("feature", pa.string()), ("value", pa.float64()), ("log_odds", pa.float64())]
_EXPLAINED = [("because", pa.list_(pa.struct(_REASON))), ("ranked_by", pa.list_(pa.struct(_LOGIT_TERM)))]


def encode_batch(rows: Rows, answers: Sequence[Answer | None], task: Task) -> bytes:
    """Rows and their answers as an Arrow stream.

    Columns of a Parquet file keep their types; those of other formats are text.
    """
    if rows.batch is None:
        names = task.columns or []
        columns = {name: pa.array([as_text(kept[name]) for kept in rows.kept], pa.string()) for name in names}
    else:
        columns = dict(zip(rows.batch.schema.names, rows.batch.columns, strict=True))
    found = [{} if answer is None else answer.to_dict() for answer in answers]
    label = pa.struct([*_LABEL, *(_EXPLAINED if task.options["explain"] else [])])
    columns["labels"] = pa.array([each.get("labels", []) for each in found], pa.list_(label))
    columns["truncated"] = pa.array([each.get("truncated", False) for each in found], pa.bool_())
    columns["exhausted"] = pa.array([each.get("exhausted", False) for each in found], pa.bool_())
    columns["error"] = pa.array([rows.errors.get(number) for number in range(len(found))], pa.string())
    return to_stream(pa.RecordBatch.from_pydict(columns), "zstd")


def convert(streams: Path, to: Path) -> None:
    """Write a Parquet file with all rows of a file of Arrow streams; one row group at a time is in memory."""
    with pa.OSFile(str(streams)) as source, to.open("wb") as target:
        batches = list(pa.ipc.open_stream(source))
        with pq.ParquetWriter(target, batches[0].schema, compression="zstd") as writer:
            while source.tell() < source.size():
                batches += pa.ipc.open_stream(source)
                if sum(map(len, batches)) >= _GROUP_ROWS or sum(each.nbytes for each in batches) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(batches))
                    batches = []
            if batches:
                writer.write_table(pa.Table.from_batches(batches))
        target.flush()
        os.fsync(target.fileno())
