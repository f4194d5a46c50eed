"""Parquet files as input and output of `recollect predict`."""

from __future__ import annotations

import csv
import json
import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recollect
from recollect.model import Model
from recollect.store.object_folder import ObjectFolder
from tests.bulk.test_bulk import (
    ROWS,
    TEXTS,
    answer_values,
    check_killed_task,
    check_values,
    expected,
    fails,
    read_jsonl,
    run,
    uids,
)
from tests.store.servers import create_bucket, s3_server


@pytest.fixture(scope="module")
def model(built: Any) -> Model:
    return recollect.open(built.store)


@pytest.fixture(autouse=True)
def store(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_STORE", str(built.store))
    monkeypatch.setenv("RECOLLECT_WORKERS", "1")


def test_parquet_columns_keep_their_types_in_parquet_and_become_text_in_csv(model: Model, tmp_path: Path) -> None:
    days = pa.array([datetime(2026, 1, 1)] * len(ROWS), pa.timestamp("ns"))
    table = pa.Table.from_pylist(ROWS).append_column("day", days)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=10)
    columns = ("--columns", "year,day", "--top-k", 1)
    assert run("--input", tmp_path / "in.parquet", "--output", tmp_path / "out.parquet", *columns) == 0
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(["year", "day"]).equals(table.select(["year", "day"]))
    assert uids(found.to_pylist()) == expected(model, top_k=1)
    assert run("--input", tmp_path / "in.parquet", "--output", tmp_path / "out.csv", *columns) == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text("utf-8").splitlines()))
    assert [row["year"] for row in rows] == [str(row["year"]) for row in ROWS]
    assert rows[0]["day"].startswith("2026-01-01 00:00:00")
    assert uids([{"labels": json.loads(row["labels"])} for row in rows]) == expected(model, top_k=1)


def test_dates_and_decimals_of_parquet_are_what_a_spreadsheet_reads(tmp_path: Path) -> None:
    times = pa.array([0, 1_500_000_000, None], pa.timestamp("ns"))
    prices = pa.array([Decimal("1.50"), Decimal("-0.25"), None], pa.decimal128(10, 2))
    table = pa.table(
        {
            "text": pa.array(TEXTS[:3]),
            "day": pa.array([0, 365, 10**9], pa.date32()),
            "time": times,
            "times": pa.array([[0], [], None], pa.list_(pa.timestamp("ns"))),
            "price": prices,
            "long": pa.array([Decimal("12345678901234567.89"), None, None], pa.decimal128(38, 2)),
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
            "id": pa.array([bytes(16)] * 3, pa.uuid()),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    flags = ("--input", tmp_path / "in.parquet", "--top-k", 1)
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        assert run(*flags, "--output", tmp_path / name) == 0
    first, second, third = read_jsonl(tmp_path / "out.jsonl")
    uid = "00000000-0000-0000-0000-000000000000"
    assert {name: first[name] for name in table.column_names[1:]} == {
        "day": "1970-01-01",
        "time": "1970-01-01 00:00:00",
        "times": ["1970-01-01 00:00:00.000000000"],
        "price": 1.5,
        "long": "12345678901234567.89",
        "kind": "a",
        "id": uid,
    }
    assert (second["day"], second["time"], second["price"]) == ("1971-01-01", "1970-01-01 00:00:01.500000000", -0.25)
    assert (third["time"], third["price"]) == (None, None)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text("utf-8").splitlines()))
    assert [rows[0][name] for name in ("day", "time", "price", "long", "id")] == [
        "1970-01-01",
        "1970-01-01 00:00:00",
        "1.50",
        "12345678901234567.89",
        uid,
    ]
    assert pq.read_table(tmp_path / "out.parquet").select(table.column_names).equals(table)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2), pa.list_(pa.binary())], ids=str
)
def test_a_column_of_bytes_is_kept_in_parquet_and_refused_by_name_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: pa.DataType
) -> None:
    value = [b"\xff\x00"] if pa.types.is_list(kind) else b"\xff\x00"
    table = pa.table({"text": TEXTS[:2], "hash": pa.array([value] * 2, kind)})
    pq.write_table(table, tmp_path / "in.parquet")
    for name in ("out.jsonl", "out.csv", "out.jsonl.gz"):
        message = fails(capsys, "--input", tmp_path / "in.parquet", "--output", tmp_path / name)
        assert "--columns: the column hash holds bytes, which " in message
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
    if kind == pa.binary():
        assert run("--input", tmp_path / "in.parquet", "--output", tmp_path / "out.parquet", "--top-k", 1) == 0
        assert pq.read_table(tmp_path / "out.parquet").column("hash").to_pylist() == [value] * 2


def test_texts_have_any_type_of_strings(capsys: pytest.CaptureFixture[str], model: Model, tmp_path: Path) -> None:
    texts = pa.array(TEXTS[:3])
    table = pa.table({"text": texts.cast(pa.string_view()), "kind": texts.dictionary_encode()})
    pq.write_table(table, tmp_path / "in.parquet")
    for column, name in (("text", "out.jsonl"), ("kind", "out.parquet")):
        flags = ("--input", tmp_path / "in.parquet", "--text-column", column, "--columns", "text", "--top-k", 1)
        assert run(*flags, "--output", tmp_path / name) == 0
    assert uids(read_jsonl(tmp_path / "out.jsonl")) == expected(model, TEXTS[:3], top_k=1)
    assert uids(pq.read_table(tmp_path / "out.parquet").to_pylist()) == expected(model, TEXTS[:3], top_k=1)
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    flags = ("--input", tmp_path / "numbers.parquet", "--output", tmp_path / "new.jsonl")
    assert "--text-column: expected texts in text, found the type int64" in fails(capsys, *flags)
    latin = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())
    pq.write_table(pa.table({"text": latin}), tmp_path / "latin.parquet")
    flags = ("--input", tmp_path / "latin.parquet", "--output", tmp_path / "new.jsonl")
    assert "expected a Parquet file that can be read, found: In column 0" in fails(capsys, *flags)


def test_a_column_that_cannot_become_text_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    times = pa.array([1], pa.timestamp("us", "Mars/Olympus"))
    pq.write_table(pa.table({"text": ["bread"], "time": times}), tmp_path / "in.parquet")
    message = fails(capsys, "--input", tmp_path / "in.parquet", "--output", tmp_path / "out.jsonl")
    assert "--columns: expected a column time that can become text, found: Cannot locate" in message


def test_no_value_of_a_json_line_stops_a_task_that_marks_bad_rows(tmp_path: Path) -> None:
    check_values(pq.read_table(answer_values(tmp_path / "out.parquet")).to_pylist(), as_json=False)


def test_a_killed_task_continues_and_gives_the_bytes_of_one_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check_killed_task(capsys, tmp_path, "out.parquet")


def test_a_file_that_is_not_parquet_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_text("PAR1")
    message = fails(capsys, "--input", tmp_path / "in.parquet", "--output", tmp_path / "out.jsonl")
    assert "in.parquet: expected a Parquet file that can be read, found: " in message


def test_pyarrow_must_be_installed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = fails(capsys, "--input", tmp_path / "in.parquet", "--output", tmp_path / "out.jsonl")
    assert message == "Parquet files need pyarrow; pip install 'recollect-xmc[parquet]'"


def test_parquet_at_urls_is_answered_as_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.Table.from_pylist(ROWS), "in.parquet")
    with s3_server() as address:
        bucket = create_bucket(address, "answers")
        ObjectFolder(bucket).upload(Path("in.parquet"), "in.parquet")
        assert run("--input", f"{bucket}/in.parquet", "--output", f"{bucket}/out.parquet") == 0
        assert run("--input", "in.parquet", "--output", "alone.parquet") == 0
        assert b"".join(ObjectFolder(bucket).pieces("out.parquet")) == Path("alone.parquet").read_bytes()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["alone.parquet", "in.parquet"]
