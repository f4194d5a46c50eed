"""`recollect extend` and `recollect memory`: a live memory is changed and shown without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.core.encoder import QueryEncoder
from recollect.core.tables.entries import Remove
from recollect.edits.log import MemoryLog
from recollect.store.store import Store
from tests.conftest import Built
from tests.edits.logs import append
from tests.processes import copy_store


@pytest.fixture
def store(built: Built, tmp_path: Path) -> Path:
    return copy_store(built.store, tmp_path / "store")


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a verb on the store; return its status, output and errors."""

    def run(verb: str, *arguments: object) -> tuple[int, str, str]:
        status = recollect.main([verb, str(store), *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Write objects as JSON lines, and strings as they are."""

    def lines(name: str, *rows: Any) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
        return path

    return lines


def log_of(store: Path) -> MemoryLog:
    opened = Store(store)
    return MemoryLog.of(opened, opened.manifest(opened.require_current()))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"uid": "x"', 'expected a JSON object, found \'{"uid": "x"\' ('),
        ("[]", "expected a JSON object, found '[]'"),
        ('{"uid": "x"}', "text: required"),
        ('{"uid": 3.0, "text": "a"}', "uid: expected a valid string, found 3.0"),
        ('{"uid": "", "text": "a"}', "uid: the uid is empty; send some words"),
        ('{"uid": "\\ud800", "text": "a"}', "uid: the uid contains half of a surrogate pair"),
        ('{"uid": "x", "text": "  "}', "text: the text is empty; send some words"),
        (
            json.dumps({"uid": "x", "text": "a " * 600_000}),
            "text: the text has 1,200,000 characters; send at most its first 20,000",
        ),
        ('{"uid": "x", "text": "a", "labels": []}', "labels: expected at least one"),
        ('{"uid": "x", "text": "a", "labels": ["Lwa"]}', "labels: expected labels of the memory or of this file, "),
        ('{"uid": "x", "text": "a", "labels": ["Law"], "weight": 0}', "weight: expected greater than 0, found 0"),
        ('{"uid": "x", "text": "a", "labels": ["Law"], "weight": NaN}', "weight: expected a finite number, found nan"),
        ('{"uid": "x", "text": "a", "vector": [1]}', "vector: expected another name of a field"),
        ('{"uid": "x", "text": "a", "label": ["Law"]}', "label: expected another name of a field"),
        ('{"uid": "x", "text": "a", "weight": 2}', "weight: expected another name of a field"),
        ('{"uid": "first", "text": "a"}', "expected each label once, found 'first' also in "),
    ],
)
def test_wrong_line_is_named_and_nothing_is_written(
    store: Path, run: Callable[..., tuple[int, str, str]], lines: Callable[..., Path], line: str, message: str
) -> None:
    path = lines("add", {"uid": "first", "text": "a"}, line)
    status, output, errors = run("extend", "--add", path)
    assert (status, output) == (2, "")
    assert errors.startswith(f"recollect extend: {path}:2: {message}")
    assert errors.count("\n") == 1
    assert not (store / "memory").exists()


def test_label_that_another_process_removes_meanwhile_stops_the_task(
    store: Path, run: Callable[..., tuple[int, str, str]], lines: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines("add", *({"uid": f"{row}", "text": "text", "labels": ["Law"]} for row in range(257)))
    encode = QueryEncoder.encode_texts

    def remove_first(encoder: QueryEncoder, instances: list[str], labels: list[str]) -> np.ndarray:
        if len(instances) == 1:  # the second block
            append(log_of(store), Remove("label", "Law"))
        return encode(encoder, instances, labels)

    monkeypatch.setattr(QueryEncoder, "encode_texts", remove_first)
    status, _, errors = run("extend", "--add", path)
    assert status == 2
    assert f"{path}:257: labels: expected labels of the memory or of this file, found 'Law', which is not" in errors
    assert len(log_of(store).read()) == 257
