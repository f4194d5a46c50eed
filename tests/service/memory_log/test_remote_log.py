"""The log in an object store: each segment is written once, so that two writers never lose a write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recollect.service.errors import LogConflictError, StoreError
from recollect.service.memory_log.log import MemoryLog, number
from recollect.service.memory_log.object_segments import ObjectSegments
from recollect.service.storage.object_folder import ObjectFolder
from tests.service.memory_log.logs import ENCODER, append, apply, folder_log, instance, label, uids, writer
from tests.service.store.servers import WebServer, create_bucket, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def remote(s3: str, tmp_path: Path) -> ObjectFolder:
    return ObjectFolder(create_bucket(s3, tmp_path.name))


def remote_log(remote: ObjectFolder, after: int = 0) -> MemoryLog:
    return MemoryLog(ObjectSegments(remote, "memory"), ENCODER, after=after)


def test_write_fails_if_another_process_was_faster(remote: ObjectFolder) -> None:
    mine, other = remote_log(remote), remote_log(remote)
    with mine.exclusive() as section:
        append(other, label("a"), label("c"))  # is larger than the other segment
        with pytest.raises(LogConflictError, match="other processes write to the log at the same time"):
            section.append(number([label("b")], section.next_sequence))
    append(mine, label("b"))
    assert uids(other.read()) == ["b"]


def test_write_whose_answer_was_lost_succeeds_once(remote: ObjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    create: Callable[..., bool] = ObjectFolder.create
    monkeypatch.setattr(ObjectFolder, "create", lambda *given: create(*given) and create(*given))
    log = remote_log(remote)
    append(log, label("a"))
    append(log, label("b"))
    assert uids(remote_log(remote).read()) == ["a", "b"]


def test_two_writers_lose_no_write(remote: ObjectFolder) -> None:
    writers = [writer(remote_log(remote)) for _ in range(2)]

    def write(name: int) -> list[int]:
        own = writers[name % 2]
        return [own.write(lambda _, each=each: [instance(f"{name}/{each}")]) for each in range(4)]

    with ThreadPoolExecutor(4) as pool:
        numbers = [number for written in pool.map(write, range(4)) for number in written]
    assert sorted(numbers) == list(range(1, 17))
    found = remote_log(remote).read()
    assert sorted(uids(found)) == sorted(f"{name}/{each}" for name in range(4) for each in range(4))
    assert {each.catch_up() for each in writers} == {apply((), found)}


def test_log_behind_a_plain_web_server_can_be_followed_but_not_written(tmp_path: Path) -> None:
    with WebServer(tmp_path).running() as web:
        log = remote_log(ObjectFolder(web.url))
        assert log.read() == []  # the server does not list the folder
        append(folder_log(tmp_path / "memory"), label("a"))
        assert uids(log.read()) == ["a"]
        append(folder_log(tmp_path / "memory"), label("c"))
        assert uids(log.read()) == ["c"]
        with pytest.raises(StoreError, match="expected a server with conditional writes|501 Not Implemented"):
            append(log, label("b"))
    assert uids(folder_log(tmp_path / "memory").read()) == ["a", "c"]
