"""`recollect predict --input` and `--output` at URLs: a local S3 server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recollect.store.object_folder import ObjectFolder
from tests.bulk.test_bulk import ROWS, fails, run, write_jsonl
from tests.store.servers import create_bucket, s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as address:
        yield create_bucket(address, "answers")


@pytest.fixture(autouse=True)
def settings(built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_STORE", str(built.store))
    monkeypatch.setenv("RECOLLECT_WORKERS", "1")
    monkeypatch.chdir(tmp_path)


def test_a_task_at_urls_continues_after_a_bad_row_and_keeps_an_existing_output(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ObjectFolder(bucket)
    folder.upload(write_jsonl(tmp_path / "in.jsonl", [*ROWS, {"text": ""}]), "in.jsonl")
    flags = ("--input", f"{bucket}/in.jsonl", "--output", f"{bucket}/out.jsonl")
    assert f"{bucket}/in.jsonl: line 36: the query is empty" in fails(capsys, *flags)
    assert not folder.has("out.jsonl")
    assert json.loads(Path("out.jsonl.partial.json").read_text())["rows"] == 35
    write_jsonl(tmp_path / "other.jsonl", ROWS)
    folder.upload(tmp_path / "other.jsonl", "in.jsonl")
    assert "started with input sha256" in fails(capsys, *flags)
    folder.upload(tmp_path / "in.jsonl", "in.jsonl")
    assert run(*flags, "--bad-rows", "mark") == 0
    capsys.readouterr()
    rows = b"".join(folder.pieces("out.jsonl")).splitlines()
    assert len(rows) == 36
    assert f"{bucket}/out.jsonl: expected no file, found one" in fails(capsys, *flags, "--bad-rows", "mark")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl", "other.jsonl"]


@pytest.mark.parametrize(
    ("flag", "url", "message"),
    [
        ("--input", "BUCKET/none.jsonl", "BUCKET/none.jsonl: expected a file, found none; check the URL"),
        ("--input", "ftp://host/in.jsonl", "ftp://host: expected a URL with one of s3://"),
        (
            "--input",
            "s3://in.jsonl",
            "--input: expected the URL of a file, such as s3://bucket/file.jsonl, found s3://",
        ),
        ("--output", "BUCKET/", "--output: expected a name that ends in one of .jsonl"),
    ],
)
def test_wrong_urls_are_refused(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, url: str, message: str
) -> None:
    write_jsonl(tmp_path / "in.jsonl", ROWS)
    flags = {"--input": "in.jsonl", "--output": "out.jsonl"} | {flag: url.replace("BUCKET", bucket)}
    assert message.replace("BUCKET", bucket) in fails(capsys, *(each for pair in flags.items() for each in pair))
    assert [each.name for each in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_error_of_the_server_is_one_message(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ROWS)
    assert run("--input", source, "--output", "s3://no-bucket-here/out.jsonl") == 2
    assert "predict: s3://no-bucket-here/out.jsonl: expected an answer, found: 404 Not Found" in capsys.readouterr().err
    assert Path("out.jsonl.partial").exists()  # the answers are uploaded by the next run
    assert httpx.put(f"{os.environ['AWS_ENDPOINT_URL']}/no-bucket-here").is_success
    assert run("--input", source, "--output", "s3://no-bucket-here/out.jsonl") == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl"]
