"""Bulk answers: `recollect predict --input`, in all formats, with bad input, after a kill, and in pipes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import recollect
from recollect.bulk.pool import WorkerPool
from recollect.core.errors import WorkerError
from recollect.model import Model
from tests import forked
from tests.conftest import TOPICS
from tests.processes import PATIENCE_SECONDS, until

TEXTS = [sentence for sentences in TOPICS.values() for sentence in sentences]
ROWS = [{"id": f"{number:03}", "text": text, "year": 2000 + number} for number, text in enumerate(TEXTS)]
# Small blocks, so that a file of 35 rows has several.
SMALL_BLOCKS = "import recollect.bulk.reading; recollect.bulk.reading.BLOCK_ROWS = 4"
# So slow that a process has not finished many rows when a test that was suspended for seconds stops it.
SLOW_WRITES = """
import time
from recollect.bulk.output import FileOutput
write = FileOutput.write
FileOutput.write = lambda *given: (write(*given), time.sleep(0.1))
"""
# So many rows that a process does not finish them before a test stops it.
MANY = [row | {"id": f"{number:03}"} for number, row in enumerate(ROWS * 10)]


@pytest.fixture(scope="module")
def model(built: Any) -> Model:
    return recollect.open(built.store)


@pytest.fixture(autouse=True)
def store(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_STORE", str(built.store))
    monkeypatch.setenv("RECOLLECT_WORKERS", "1")


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in io.BytesIO(content)]


def uids(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[label["uid"] for label in row["labels"]] for row in rows]


def expected(model: Model, texts: list[str] = TEXTS, **options: Any) -> list[list[str]]:
    return [[label.uid for label in labels] for labels in model.predict(texts, **options)]


def run(*arguments: object) -> int:
    return recollect.main(["predict", *map(str, arguments)])


def start(*arguments: object, prelude: str = "", **streams: Any) -> subprocess.Popen[bytes]:
    program = f"{prelude}\nimport sys, recollect\nsys.exit(recollect.main())"
    return forked.Popen([sys.executable, "-c", program, "predict", *map(str, arguments)], **streams)


def running(*arguments: object, target: Path) -> subprocess.Popen[bytes]:
    """A process that has recorded its first finished rows, and has not finished yet."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    prelude = SMALL_BLOCKS + SLOW_WRITES
    process = start(*arguments, "--output", target, prelude=prelude, start_new_session=True, **pipes)
    until(lambda: finished_rows(target) or process.poll() is not None)
    assert process.poll() is None
    return process


def finished_rows(target: Path) -> int:
    state = Path(f"{target}.partial.json")
    return int(json.loads(state.read_text())["rows"]) if state.exists() else 0


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1, captured.err
    return captured.err.removeprefix("recollect predict: ").rstrip()


# ---- Formats ----


def test_jsonl_keeps_order_and_fields_and_gives_the_answers_of_predict(model: Model, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ROWS)
    assert run("--input", source, "--output", tmp_path / "out.jsonl.gz", "--top-k", 3) == 0
    rows = read_jsonl(tmp_path / "out.jsonl.gz")
    assert [{name: row[name] for name in ROWS[0]} for row in rows] == ROWS
    assert uids(rows) == expected(model, top_k=3)
    label, known = rows[0]["labels"][0], model.predict(TEXTS[0], top_k=1)[0]
    assert (label["uid"], label["text"]) == (known.uid, known.text)
    assert label["score"] == pytest.approx(known.score, rel=1e-4)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl.gz"]


def test_several_workers_keep_the_order_of_the_input(model: Model, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ROWS)
    flags = ("--input", source, "--output", tmp_path / "out.jsonl", "--top-k", 1, "--workers", 3)
    assert start(*flags, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    assert uids(read_jsonl(tmp_path / "out.jsonl")) == expected(model, top_k=1)


# ---- Wrong settings and rows ----


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        ("in.csv", "id,title\n1,x\n", (), "--text-column: expected one of id, title, found text"),
        ("in.csv", "id,text\n1,x\n", ("--columns", "name"), "--columns: expected one of id, text, found name"),
        ("in.csv", "text,labels\nx,y\n", (), "--columns: the output has a column labels of its own"),
        ("in.csv", "text,text\nx,y\n", (), "expected a header with different names of columns, found text, text"),
        ("in.csv", "", (), "expected a header with different names of columns, found an empty file"),
        ("in.tsv", "x", (), "--input: expected a name that ends in one of .txt, .jsonl, .ndjson, .csv, .parquet"),
        ("in.jsonl", "", ("--output", "out.xml"), "--output: expected a name that ends in one of .jsonl"),
        ("in.jsonl", "", ("--output", "out.csv"), "--columns: a JSON line has no fixed fields"),
        ("in.jsonl", "", ("a text",), "--input: expected no other query, found 'a text'"),
        ("in.jsonl", "", ("--version", "v9"), "v9"),
    ],
)
def test_wrong_settings_are_refused_before_a_worker_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: str, flags: tuple[str, ...], message: str
) -> None:
    (tmp_path / name).write_text(content)
    if "--output" not in flags:
        flags = (*flags, "--output", str(tmp_path / "out.jsonl"))
    assert message in fails(capsys, "--input", tmp_path / name, *flags)
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "\\ud800"}', "the query contains half of a surrogate pair, which is not a character; remove it"),
        ('{"text": "br', 'expected a JSON object, found \'{"text": "br\''),
        ('{"a": 1}', "expected the field text, found a; use --text-column"),
        ('{"text": "a", "labels": []}', "the answer has a field labels of its own; name the fields to keep"),
    ],
)
def test_a_bad_line_is_named_and_the_rows_before_it_are_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, message: str
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f'{{"text": "bread"}}\n{line}\n{{"text": "oven"}}\n')
    assert f"{source}: line 2: {message}" in fails(capsys, "--input", source, "--output", target)
    assert [row["text"] for row in read_jsonl(Path(f"{target}.partial"))] == ["bread"]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("2", "row 2: expected CSV, found: 1 values for 2 columns"),
        ('2,"b', "row 2: expected CSV, found: unexpected end of data"),
    ],
)
def test_the_rows_before_a_bad_row_are_kept_for_the_next_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, last: str, message: str
) -> None:
    (tmp_path / "in.csv").write_text(f"id,text\n1,bread\n{last}")
    target = tmp_path / "out.jsonl"
    assert message in fails(capsys, "--input", tmp_path / "in.csv", "--output", target)
    assert not target.exists()
    assert json.loads(Path(f"{target}.partial.json").read_text())["rows"] == 1
    assert len(read_jsonl(Path(f"{target}.partial"))) == 1


def test_mark_gives_bad_rows_an_error_and_continues_a_run_that_stopped(
    capsys: pytest.CaptureFixture[str], model: Model, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "bread"}, {"text": ""}, {"id": 7}, {"text": "oven"}])
    flags = ("--input", source, "--output", tmp_path / "out.jsonl", "--top-k", 1)
    assert "line 2: the query is empty" in fails(capsys, *flags)
    assert run(*flags, "--bad-rows", "mark") == 0
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert uids(rows) == [expected(model, ["bread"], top_k=1)[0], [], [], expected(model, ["oven"], top_k=1)[0]]
    assert [row.get("error", "").partition(";")[0] for row in rows] == [
        "",
        "the query is empty",
        "expected the field text, found id",
        "",
    ]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("name", ["in.txt", "in.csv", "in.jsonl"])
def test_byte_order_mark_and_line_ends_change_nothing(model: Model, tmp_path: Path, name: str, end: str) -> None:
    lines = {
        "in.txt": ["bread", "oven"],
        "in.csv": ["text,id", "bread,1", "oven,2"],
        "in.jsonl": ['{"text": "bread"}', '{"text": "oven"}'],
    }[name]
    (tmp_path / name).write_bytes(f"\ufeff{end.join(lines)}{end}".encode())
    assert run("--input", tmp_path / name, "--output", tmp_path / "out.jsonl", "--top-k", 1) == 0
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert [row["text"] for row in rows] == ["bread", "oven"]
    assert uids(rows) == expected(model, ["bread", "oven"], top_k=1)


@pytest.mark.parametrize("bad_rows", ["stop", "mark"])
@pytest.mark.parametrize("name", ["in.txt", "in.csv", "in.jsonl"])
def test_blank_lines_are_skipped_and_messages_name_the_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, bad_rows: str
) -> None:
    lines = {
        "in.txt": ["", "bread", " \t", "oven", "\u200b", ""],
        "in.csv": ["", "text,id", "  ", "bread,1", "", "oven,2", " "],
        "in.jsonl": ["", '{"text": "bread"}', " ", '{"text": "oven"}', ""],
    }[name]
    source, flags = tmp_path / name, ("--output", tmp_path / "out.jsonl", "--top-k", 1, "--bad-rows", bad_rows)
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert run("--input", source, *flags) == 0
    assert [row["text"] for row in read_jsonl(tmp_path / "out.jsonl")] == ["bread", "oven"]
    (tmp_path / "bad.jsonl").write_text('{"text": "bread"}\n\n\n{"text": 7}\n')
    if bad_rows == "stop":
        message = fails(capsys, "--input", tmp_path / "bad.jsonl", *flags, "--overwrite")
        assert "bad.jsonl: line 4: the query must be a text" in message


def test_column_that_no_json_line_has_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "bread"}, {"text": "oven", "id": 7}])
    assert run("--input", source, "--output", tmp_path / "out.jsonl", "--columns", "id,titel") == 0
    assert capsys.readouterr().err == "--columns: no row has the field titel\n"
    assert [(row["id"], row["titel"]) for row in read_jsonl(tmp_path / "out.jsonl")] == [(None, None), (7, None)]


def test_broken_compression_is_named_and_a_long_text_is_cut_as_by_predict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    packed = gzip.compress(json.dumps({"text": "bread " * 10_000}).encode() + b"\n")
    (tmp_path / "in.jsonl.gz").write_bytes(packed)
    assert run("--input", tmp_path / "in.jsonl.gz", "--output", tmp_path / "out.jsonl") == 0
    assert read_jsonl(tmp_path / "out.jsonl")[0]["truncated"] is True
    capsys.readouterr()
    (tmp_path / "in.jsonl.gz").write_bytes(packed[:-9])
    error = fails(capsys, "--input", tmp_path / "in.jsonl.gz", "--output", tmp_path / "new.jsonl")
    assert "in.jsonl.gz: the gzip stream breaks after line 0" in error


def test_a_value_with_any_character_stays_in_its_row_of_csv_and_comes_back_from_it(tmp_path: Path) -> None:
    notes = [
        "a\rb",
        "a\r\nb",
        "a\nb",
        "\ufeffa",
        "a\r\n\ufeffb\r",
        'a,"b"',
        "a\vb",
        "a\x85b",
        "a\u2028b",
        " a ",
        "a\x1e",
    ]
    rows = [{"id": str(number), "text": "bread", "note": note} for number, note in enumerate(notes)]
    source, table = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.csv"
    flags = ("--columns", "id,text,note", "--top-k", 1)
    assert run("--input", source, "--output", table, *flags) == 0
    content = table.read_bytes().decode()
    read = list(csv.DictReader(io.StringIO(content, newline="")))
    assert [{name: row[name] for name in rows[0]} for row in read] == rows
    assert [row["id"] for row in csv.DictReader(content.splitlines())] == [row["id"] for row in rows]
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert run("--input", table, "--output", tmp_path / "again.jsonl", *flags) == 0
    assert [{name: row[name] for name in rows[0]} for row in read_jsonl(tmp_path / "again.jsonl")] == rows


def test_a_quoted_value_of_a_file_with_windows_line_ends_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes('\ufeff"id",text\r\n"a\r\nb\n\ufeffc\r",bread\r\n'.encode())
    assert run("--input", tmp_path / "in.csv", "--output", tmp_path / "out.jsonl", "--top-k", 1) == 0
    (row,) = read_jsonl(tmp_path / "out.jsonl")
    assert (row["id"], row["text"]) == ("a\r\nb\n\ufeffc\r", "bread")


HALF, DEEP = "\ud800", "[" * 300 + "]" * 300
# JSON of a column that is kept, and the column as JSON and as text in the output.
VALUES = [
    ('"\\ud800"', HALF, "?"),
    ('["\\ud800", NaN]', [HALF, None], '["\\ud800", null]'),
    ('{"\\ud800": 1}', {HALF: 1}, '{"\\ud800": 1}'),
    ("9" * 400, int("9" * 400), "9" * 400),
    ("NaN", None, None),
    ("-Infinity", None, None),
    ("1e999", None, None),
    ('[1, "a", 1e999]', [1, "a", None], '[1,"a",null]'),
    ("[" * 150 + "]" * 150, json.loads("[" * 150 + "]" * 150), "[" * 150 + "]" * 150),
]
# JSON of a column that makes its line wrong.
WRONG_VALUES = [
    (DEEP, "expected lists and objects of at most 200 levels, found more"),
    ("9" * 5_000, "expected a JSON object, found "),
    ('"a', "expected a JSON object, found "),
]


def write_values(path: Path, values: list[str]) -> Path:
    path.write_text("".join(f'{{"id": {value}, "text": "bread"}}\n' for value in values))
    return path


def answer_values(target: Path) -> Path:
    """Answer the lines with the values above, and mark the wrong ones."""
    values = [*(value for value, *_ in VALUES), *(value for value, _ in WRONG_VALUES)]
    source = write_values(target.with_name("in.jsonl"), values)
    with source.open("a") as file:
        file.write('{"id": 1, "text": "\\ud800"}\n{"id": 2, "text": "bread"}\n{"\\ud800": 1}\n')
    assert run("--input", source, "--output", target, "--columns", "id,text", "--top-k", 1, "--bad-rows", "mark") == 0
    return target


def check_values(rows: list[dict[str, Any]], as_json: bool) -> None:
    assert [row["id"] for row in rows[: len(VALUES)]] == [value if as_json else text for _, value, text in VALUES]
    assert not any(row.get("error") for row in rows[: len(VALUES)])
    for row, (_, message) in zip(rows[len(VALUES) : -3], WRONG_VALUES, strict=True):
        assert (row["id"], row["text"]) == (None, None)
        assert row["error"].startswith(message)
    first, second, third = rows[-3:]
    assert first["text"] == (HALF if as_json else "?")
    assert "half of a surrogate pair" in first["error"]
    assert (str(second["id"]), second["text"], second.get("error")) == ("2", "bread", None)
    assert third["error"] == f"expected the field text, found {'?'}; use --text-column"


def test_no_value_of_a_line_stops_a_task_that_marks_bad_rows(tmp_path: Path) -> None:
    lines = answer_values(tmp_path / "out.jsonl").read_text().splitlines()
    check_values([json.loads(line, parse_constant=pytest.fail) for line in lines], as_json=True)
    table = answer_values(tmp_path / "out.csv").read_bytes().decode()
    rows = csv.DictReader(io.StringIO(table, newline=""))
    check_values([{name: value or None for name, value in row.items()} for row in rows], as_json=False)


def test_a_line_that_is_nested_too_deep_stops_the_task_with_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = write_values(tmp_path / "in.jsonl", ["1", DEEP, "3"])
    flags = ("--input", source, "--output", tmp_path / "out.jsonl", "--top-k", 1)
    message = f"{source}: line 2: expected lists and objects of at most 200 levels, found more"
    assert fails(capsys, *flags) == message
    assert fails(capsys, *flags) == message
    assert run(*flags, "--bad-rows", "mark") == 0
    assert [row.get("id") for row in read_jsonl(tmp_path / "out.jsonl")] == [1, None, 3]


# ---- Live entries ----


@pytest.fixture
def live_store(built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one live entry: a label that is the best one for the text "zebra crossing"."""
    store = tmp_path / "store"
    shutil.copytree(built.store, store)
    monkeypatch.setenv("RECOLLECT_STORE", str(store))
    recollect.open(store, live="write").add(labels=[{"uid": "zebra", "text": "zebra crossing"}])
    return store


def best(rows: list[dict[str, Any]]) -> set[str]:
    return {row["labels"][0]["uid"] for row in rows}


def test_a_task_that_continues_after_a_change_answers_with_the_memory_of_its_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, live_store: Path
) -> None:
    rows = 1_500
    source = write_jsonl(tmp_path / "in.jsonl", [{"id": row, "text": "zebra crossing"} for row in range(rows)])
    target, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    flags = ("--input", source, "--top-k", 1)
    assert start(*flags, "--output", whole, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    assert best(read_jsonl(whole)) == {"zebra"}
    process = running(*flags, target=target)
    process.kill()
    process.communicate()
    recollect.open(live_store, live="write").remove(labels=["zebra"])
    message = fails(capsys, *flags, "--output", target, "--live", "off")
    assert f'{target}.partial: its task was started with live "read", found "off"' in message
    (live_store / "memory").rename(live_store / "moved")
    message = fails(capsys, *flags, "--output", target)
    assert "expected the live entries up to 1, with which the task was started, found those up to 0" in message
    (live_store / "moved").rename(live_store / "memory")
    assert 0 < finished_rows(target) < rows
    assert start(*flags, "--output", target, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    assert target.read_bytes() == whole.read_bytes()
    assert run(*flags, "--output", target, "--overwrite") == 0
    assert "zebra" not in best(read_jsonl(target))


def test_workers_that_start_before_and_after_a_change_have_the_same_memory(live_store: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start("-", "--top-k", 1, "--workers", 2, prelude=SMALL_BLOCKS, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"zebra crossing\n")
        process.stdin.flush()
        rows = [json.loads(process.stdout.readline())]
        recollect.open(live_store, live="write").remove(labels=["zebra"])
        output, _ = process.communicate(b"zebra crossing\n" * 100, timeout=PATIENCE_SECONDS)
    rows += map(json.loads, output.splitlines())
    assert (len(rows), best(rows)) == (101, {"zebra"})


def test_live_off_answers_with_the_memory_of_the_bundle(tmp_path: Path, live_store: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", [{"text": "zebra crossing"}]), tmp_path / "out.jsonl"
    assert run("--input", source, "--output", target, "--live", "off") == 0
    assert "zebra" not in best(read_jsonl(target))


# ---- Kill, overwrite, full disk ----


def test_a_killed_task_continues_and_gives_the_bytes_of_one_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check_killed_task(capsys, tmp_path, "out.csv.gz")


def check_killed_task(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    source, target, whole = write_jsonl(tmp_path / "in.jsonl", MANY), tmp_path / name, tmp_path / f"whole-{name}"
    flags = ("--input", source, "--top-k", 1, "--columns", "id")
    process = running(*flags, target=target)
    process.send_signal(signal.SIGSTOP)
    workers = psutil.Process(process.pid).children()
    assert "another process writes this file" in fails(capsys, *flags, "--output", target)
    process.kill()
    process.communicate()
    psutil.wait_procs(workers, timeout=PATIENCE_SECONDS)
    assert not any(worker.is_running() for worker in workers)
    with Path(f"{target}.partial").open("ab") as partial:
        partial.write(b"bytes of a row that is not finished")
    assert "started with top_k 1, found 2; continue with the same" in fails(
        capsys, *flags, "--output", target, "--top-k", 2
    )
    changed = source.stat().st_mtime_ns
    os.utime(source, (1, 1))
    assert "started with input changed" in fails(capsys, *flags, "--output", target)
    os.utime(source, ns=(0, changed))
    assert 0 < finished_rows(target) < len(MANY)
    for output in (target, whole):
        assert start(*flags, "--output", output, prelude=SMALL_BLOCKS).wait(PATIENCE_SECONDS) == 0
    assert target.read_bytes() == whole.read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {source.name, target.name, whole.name}


def test_a_killed_worker_ends_the_task_with_one_message_and_the_finished_rows_are_kept(tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", MANY), tmp_path / "out.jsonl"
    process = running("--input", source, target=target)
    next(each for each in psutil.Process(process.pid).children() if "spawn_main" in "".join(each.cmdline())).kill()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output, len(errors.splitlines())) == (1, b"", 1), errors
    assert b"a worker process ended; is there enough memory?" in errors
    assert len(read_jsonl(Path(f"{target}.partial"))) == finished_rows(target) > 0


def test_the_end_of_a_worker_is_reported_by_the_next_call() -> None:
    with WorkerPool(1) as pool:
        worker = psutil.Process(pool.result(pool.submit(os.getpid)))
        worker.kill()
        worker.wait(PATIENCE_SECONDS)

        def call() -> None:
            pool.result(pool.submit(os.getpid))

        for _ in range(2):  # the first call may notice it before or after it is submitted
            with pytest.raises(WorkerError, match="a worker process ended"):
                call()


def test_an_existing_output_stays_until_its_replacement_is_complete(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", [*ROWS, {"text": ""}]), tmp_path / "out.jsonl"
    target.write_text("old")
    flags = ("--input", source, "--output", target)
    assert "expected no file, found one; choose another name, or use --overwrite" in fails(capsys, *flags)
    assert "the query is empty" in fails(capsys, *flags, "--overwrite")
    assert target.read_text() == "old"
    assert run(*flags, "--bad-rows", "mark") == 0
    assert len(read_jsonl(target)) == len(ROWS) + 1


@pytest.mark.parametrize("stdout", [True, False])
def test_a_full_disk_is_one_message(tmp_path: Path, stdout: bool) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ROWS)
    with Path("/dev/full").open("wb") as full:
        flags = () if stdout else ("--output", "/dev/full", "--input-format", "jsonl")
        process = start("--input", source, *flags, stdout=full, stderr=subprocess.PIPE)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    name = "standard output" if stdout else "/dev/full"
    assert (process.returncode, errors.decode()) == (
        2,
        f"recollect predict: {name}: No space left on device; free some space\n",
    )


# ---- Pipes ----


def test_each_line_of_a_pipe_is_answered_before_the_next_line_comes(model: Model) -> None:
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start("-", "--top-k", 1, **pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    for text in TEXTS[:3]:
        process.stdin.write(f"{text}\n".encode())
        process.stdin.flush()
        row = json.loads(process.stdout.readline())
        assert row["text"] == text
        assert uids([row]) == expected(model, [text], top_k=1)
    rest, _ = process.communicate(TEXTS[3].encode(), timeout=PATIENCE_SECONDS)  # without an end of the line
    assert (json.loads(rest)["text"], process.returncode) == (TEXTS[3], 0)


def test_a_reader_that_closes_the_pipe_ends_the_task_without_a_traceback(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ROWS * 20)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("--input", source, prelude=SMALL_BLOCKS, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["id"] == "000"
        process.stdout.close()
        assert (process.stderr.read(), process.wait(PATIENCE_SECONDS)) == (b"", 1)


def test_ctrl_c_keeps_the_finished_rows(tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", MANY), tmp_path / "out.jsonl"
    process = running("--input", source, target=target)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (130, b"recollect predict: interrupted\n")
    assert len(read_jsonl(Path(f"{target}.partial"))) == finished_rows(target) > 0


# ---- A user's program ----


def test_a_program_without_a_guard_of_its_main_module_runs_once(built: Any, tmp_path: Path) -> None:
    source, target = write_jsonl(tmp_path / "in.jsonl", ROWS[:3]), tmp_path / "out.jsonl"
    program = tmp_path / "program.py"
    arguments = f"{str(source)!r}, {str(target)!r}, store={str(built.store)!r}, workers=2"
    program.write_text(f"import recollect\nprint('runs')\nrecollect.predict_file({arguments})\n")
    output = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=True)
    assert (output.stdout, len(read_jsonl(target))) == (b"runs\n", 3)
