"""The log of a live memory: stored formats, damage, missing entries, other encoders, requests with a key."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.errors import ChangeError, MemoryLogError, StoreError
from recollect.core.tables.entries import Entry, InstanceFields, PutCorrection, PutInstance, PutLabel, Remove
from recollect.edits.commits import EncoderOfCommit, decode_commit, encode_commit
from recollect.edits.log import MemoryLog
from recollect.store.files import FolderFiles
from tests.edits.logs import append, instance, is_same, label, log_in, uids, writer

DATA = Path(__file__).parent / "data"


def commit_file(store: Path, first: int) -> Path:
    return store / "memory" / f"{first:020}.jsonl"


# ---- Stored formats ----


def test_stored_commit_of_format_1_is_read_and_written_again_byte_for_byte() -> None:
    """Every format that a release has written must stay readable: add a file for a new one, and change none."""
    content = (DATA / "format-1.jsonl").read_bytes()
    commit = decode_commit(content, 11)
    vector = np.float32([0.5, -0.5, 0.5, 0.5])
    expected = [
        PutLabel("sku-9", "Folding hammock\n– « 吊床 »", vector),
        PutInstance("q77", "bed that hangs", ["sku-9", "b"], vector),
        PutInstance("heavy", "text", ["b"], vector, InstanceFields(weight=2.5)),
        PutCorrection("feedback-1", "hanging bed", "b", vector),
        Remove("instance", "q76"),
        Remove("label", "old"),
        Remove("correction", "feedback-0"),
    ]
    assert [logged.sequence for logged in commit.entries] == list(range(11, 18))
    assert commit.seconds == 1764163200.5
    assert commit.encoder.dim == 4
    for logged, entry in zip(commit.entries, expected, strict=True):
        assert is_same(logged, type(logged)(logged.sequence, logged.seconds, entry))
    (request,) = commit.requests
    assert (request.key, request.sequence, request.answer) == ("k" * 64, 12, {"version": "v1", "id": "feedback-1"})
    assert encode_commit(commit) == content


def test_fields_with_a_default_may_be_missing() -> None:
    head, entry = (json.loads(line) for line in (DATA / "format-1.jsonl").read_text("utf-8").splitlines()[:2])
    del head["requests"]
    commit = decode_commit(lines(head | {"count": 1}, entry), 11)
    assert (commit.requests, commit.last) == ([], 11)


def lines(*rows: Any) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


HEAD = {"format_version": 1, "id": "0", "first": 2, "count": 1, "seconds": 1.5, "encoder": "0", "dim": 4}
PUT = {"kind": "put_instance", "uid": "x", "text": "x", "labels": ["a"], "vector": "AAAAAAAAAAAAAAAAAACAPw=="}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected the head of a commit as JSON, found b''"),
        (b"\x00" * 9, "expected the head of a commit as JSON, found"),
        (lines(HEAD)[:-9], "expected the head of a commit as JSON, found"),
        (b"[" * 200_000 + b"\n", "expected the head of a commit as JSON, found b'[[["),
        (b'{"format_version":' + b"1" * 5_000 + b"}\n", "expected the head of a commit as JSON, found"),
        (lines(HEAD) + b"[" * 200_000 + b"\n", "line 2: "),
        (lines(HEAD | {"format_version": 2}, PUT), "expected format_version 1, found 2; a newer release may know it"),
        (lines(HEAD | {"color": 1}, PUT), "line 1: unknown field color; a newer release may know it"),
        (lines(HEAD | {"seconds": "1"}, PUT), "line 1: seconds: expected a valid number, found '1'"),
        (lines(HEAD | {"first": 3}, PUT), "expected a commit that begins with entry 2, found entry 3"),
        (lines(HEAD | {"count": 2}, PUT), "expected 2 entries, found a file with 1"),
        (lines(HEAD, PUT)[:-1], "expected 1 entries, found a file with 0"),
        (lines(HEAD, PUT | {"color": 1}), "line 2: unknown field color; a newer release may know it"),
        (lines(HEAD, {"kind": "put_instance"}), "line 2: expected a field uid, found none"),
        (lines(HEAD, {"kind": "move"}), "line 2: "),
        (lines(HEAD, PUT | {"labels": []}), "line 2: labels: expected List should have at least 1 item"),
        (lines(HEAD, PUT | {"weight": -1.0}), "line 2: weight: expected greater than 0, found -1.0"),
        (lines(HEAD, PUT | {"vector": "AACAPw=="}), "line 2: vector: expected 4 dimensions, found 1"),
        (lines(HEAD, PUT | {"vector": "AAAAAAAAAAAAAAAAAADAfw=="}), "line 2: vector: expected finite numbers, found"),
        (lines(HEAD, PUT | {"vector": "?"}), "line 2: vector: expected base64, found '?'"),
    ],
)
def test_damaged_file_is_an_error_that_names_file_and_reason_and_changes_nothing(
    tmp_path: Path, content: bytes, message: str
) -> None:
    append(log_in(tmp_path), label("a"))
    reader = log_in(tmp_path)
    reader.read()
    path = commit_file(tmp_path, 2)
    path.write_bytes(content)
    for log in (reader, log_in(tmp_path)):
        with pytest.raises(MemoryLogError) as caught:
            log.read()
        assert str(caught.value).startswith(f"{path}: {message}")
        assert "\n" not in str(caught.value)
        assert "restore it from a copy" in str(caught.value)
        with pytest.raises(MemoryLogError):
            writer(log).write(lambda _: [label("b")])
    assert path.read_bytes() == content
    path.write_bytes(lines(HEAD, PUT))
    assert uids(reader.read()) == ["x"]  # the process goes on after the repair


def test_missing_commit_between_others_is_an_error(tmp_path: Path) -> None:
    for uid in "abc":
        append(log_in(tmp_path), label(uid))
    commit_file(tmp_path, 2).rename(tmp_path / "aside")
    own = writer(log_in(tmp_path))
    with pytest.raises(MemoryLogError, match=r"0002.jsonl: expected a commit, because later ones exist, found none; "):
        own.write(lambda _: [label("d")])
    assert own.memory == ("a",)
    (tmp_path / "aside").rename(commit_file(tmp_path, 2))
    assert own.catch_up() == ("a", "b", "c")


def test_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file")
    with pytest.raises(StoreError, match="memory: expected a path that can be listed, found: Not a directory; check"):
        log_in(tmp_path).read()


# ---- Logs that do not fit ----


def test_log_without_the_entries_that_the_bundle_contains_is_refused(tmp_path: Path) -> None:
    """A version of the same store that does not contain them would give their numbers to other entries."""
    missing = log_in(tmp_path, after=2)
    assert missing.read() == []  # a copy of the bundle alone can be served
    with pytest.raises(MemoryLogError, match="expected the log whose first 2 entries the version contains"):
        append(missing, label("a"))
    append(log_in(tmp_path), label("a"))
    for log in (missing, log_in(tmp_path, after=2)):
        with pytest.raises(MemoryLogError, match="found a log of 1 entries; copy the log"):
            log.read()
    append(log_in(tmp_path), label("b"))
    assert missing.read() == []
    append(missing, label("c"))
    assert uids(log_in(tmp_path).read()) == ["a", "b", "c"]


def test_entries_of_another_encoder_are_encoded_again(tmp_path: Path) -> None:
    instance = PutInstance("d", "text of d", ["a"], np.float32([1, 0, 0, 0]))
    append(log_in(tmp_path), label("a"), Remove("instance", "b"), instance, label("c"))
    other = EncoderOfCommit("another", 2)
    encoded: list[tuple[Sequence[str], Sequence[str]]] = []

    def encode(queries: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        encoded.append((queries, labels))
        return np.float32([*([[0, 1]] * len(queries)), *([[0.6, 0.8]] * len(labels))])

    log = MemoryLog(FolderFiles(tmp_path), other, encode)
    first, _, third, last = log.read()
    assert encoded == [(["text of d"], ["text of a", "text of c"])]
    vectors = [vars(each.entry)["vector"].tolist() for each in (first, third, last)]
    assert vectors == [pytest.approx([0.6, 0.8]), [0, 1], pytest.approx([0.6, 0.8])]
    append(log, PutInstance("new", "text", ["a"], np.float32([1, 0])))
    assert uids(log_in(tmp_path).read()) == ["a", "b", "d", "c", "new"]


# ---- Several threads ----


def test_threads_that_share_commits_decide_as_if_one_came_after_the_other(tmp_path: Path) -> None:
    own = writer(log_in(tmp_path))

    def create_all(_: int) -> int:
        """Create instances and labels that do not exist; return the number of those that this thread has created."""
        created = 0
        for uid in map(str, range(30)):

            def decide(memory: tuple[str, ...], uid: str = uid) -> list[Entry]:
                if uid in memory:
                    raise ChangeError("it exists")
                return [label(uid) if int(uid) % 3 == 0 else instance(uid)]

            with contextlib.suppress(ChangeError):
                own.write(decide)
                created += 1
        return created

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create_all, range(8))) == 30
    assert {*own.memory} == {*uids(log_in(tmp_path).read())} == {*map(str, range(30))}
    assert len(log_in(tmp_path).read()) == 30
