"""The log in an object store, and behind a plain web server."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.core.errors import StoreError
from recollect.core.tables.entries import Entry
from recollect.store.object_folder import ObjectFolder
from tests.edits.logs import append, instance, label, log_in, uids, writer
from tests.store.servers import WebServer, create_bucket


def test_writer_that_was_slower_decides_again_and_writes_the_next_commit(s3: str) -> None:
    remote = ObjectFolder(create_bucket(s3, "log"))
    own, other = writer(log_in(remote)), log_in(remote)
    seen: list[tuple[str, ...]] = []

    def decide(memory: tuple[str, ...]) -> list[Entry]:
        seen.append(memory)
        if len(seen) <= 3:
            append(other, label(f"other {len(seen)}"))
        return [instance("own")]

    assert own.write(decide).sequence == 4
    others = ["other 1", "other 2", "other 3"]
    assert seen == [tuple(others[:count]) for count in range(4)]
    assert uids(log_in(remote).read()) == [*others, "own"] == [*own.memory]


def test_missing_bucket_is_one_line_with_the_next_step(s3: str) -> None:
    with pytest.raises(StoreError, match="found: 404 Not Found: .*; check the URL, the network and the cred") as caught:
        writer(log_in(ObjectFolder("s3://nowhere/store"))).write(lambda _: [label("a")])
    assert "\n" not in str(caught.value)


def test_log_behind_a_plain_web_server_can_be_followed_but_not_written(tmp_path: Path) -> None:
    with WebServer(tmp_path).running() as web:
        log = log_in(ObjectFolder(web.url))
        assert log.read() == []  # the server does not list the folder
        for uid in "abc":
            append(log_in(tmp_path), label(uid))
        assert uids(log.read()) == ["a", "b", "c"]
        with pytest.raises(StoreError, match="expected an object store or a folder to write to, found a web server"):
            append(log, label("d"))
    assert uids(log_in(tmp_path).read()) == ["a", "b", "c"]
