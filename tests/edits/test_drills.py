"""Drills with real processes: no acknowledged write is lost, none is applied twice, and none is overwritten."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from recollect.core.errors import MemoryLogError
from recollect.core.tables.entries import LoggedEntry
from recollect.edits.log import prune_log
from recollect.store.files import FolderFiles
from recollect.store.store import Store
from tests import forked
from tests.edits.logs import append, apply, instance, log_in, uids, writer

REPOSITORY = Path(__file__).parents[2]

# Program that forks writers of two paths of a store, kills them at random times, and prints what they acknowledged.
KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from recollect.edits.writer import MemoryWriter
from tests.edits.logs import instance, log_in

def start(store, name):
    read, write = os.pipe()
    if (child := os.fork()):
        os.close(write)
        return child, os.fdopen(read)
    own, number = MemoryWriter(log_in(store), 0, lambda count, entries, _: count + len(entries)), 0
    while True:
        uid = f"{name}/{number}"
        own.write(lambda count: [instance(uid), instance(uid + "!")])
        os.write(write, f"{uid}\\n".encode())
        number += 1
        time.sleep(random.uniform(0, 0.002))

for start_ in range(25):
    children = [start(Path(path, str(start_ % 5)), f"{start_}.{nth}") for nth, path in enumerate(sys.argv[1:])]
    for child, acknowledged in random.sample(children, 2):
        print(acknowledged.readline(), end="")
        time.sleep(random.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        print(acknowledged.read(), end="")
        os.waitpid(child, 0)
"""


def require_whole_changes(store: Path, acknowledged: list[str]) -> None:
    found = log_in(store).read()
    assert [each.sequence for each in found] == [*range(1, len(found) + 1)]
    assert set(acknowledged) <= set(uids(found))
    assert len(set(uids(found))) == len(found)
    changes = {uid.rstrip("!") for uid in uids(found)}
    assert {f"{uid}!" for uid in changes} <= set(uids(found))  # a change is in the log as a whole


@pytest.fixture
def mounted(tmp_path: Path) -> Any:
    """A store, and the same store at a second mount point, as another host sees it."""
    paths = [tmp_path / "store", tmp_path / "mounted"]
    for path in paths:
        path.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", *paths], capture_output=True).returncode:
        paths[1].rmdir()
        paths[1].symlink_to(paths[0])
        yield paths
        return
    yield paths
    subprocess.run(["umount", "-l", paths[1]], check=True)


def test_two_processes_that_are_killed_50_times_lose_no_acknowledged_write(mounted: list[Path]) -> None:
    acknowledged = forked.run_code(KILLS, *mounted).stdout.splitlines()
    assert len(acknowledged) >= 50
    for nth in range(5):
        of_store = [uid for uid in acknowledged if int(uid.partition(".")[0]) % 5 == nth]
        require_whole_changes(mounted[0] / str(nth), of_store)


def test_process_that_sleeps_while_its_next_number_is_removed_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is free again, so it can create the file. The marker shows that a bundle contains the number."""
    hour_ago = time.time() - 4_000
    append(log_in(tmp_path), instance("before"), seconds=hour_ago)
    sleeping, reading = writer(log_in(tmp_path)), log_in(tmp_path)
    assert uids(reading.read()) == ["before"]
    monkeypatch.setattr(Store, "versions", lambda _: ["compacted"])
    monkeypatch.setattr(Store, "manifest", lambda *_: type("Manifest", (), {"memory_sequence": 4}))
    clock = time.clock_gettime

    def decide(_: object) -> list[Any]:
        if not (tmp_path / "memory" / f"{4:020}.pruned").exists():
            for number in range(5):
                append(log_in(tmp_path), instance(f"other {number}"), seconds=hour_ago)
            assert prune_log(Store(tmp_path)) == 4
            monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + 4_000)
        return [instance("late")]

    names = [f"{4:020}.pruned", f"{5:020}.jsonl", f"{6:020}.jsonl"]
    for act in (lambda: sleeping.write(decide), lambda: sleeping.write(decide), reading.read, reading.read):
        with pytest.raises(MemoryLogError, match="expected the entries after 1, found that those up to 4 were removed"):
            act()
        assert sorted(os.listdir(tmp_path / "memory")) == names
    assert uids(log_in(tmp_path, after=4).read()) == ["other 3", "other 4"]
    with pytest.raises(MemoryLogError, match="those up to 4 were removed by `recollect prune --memory-log`; serve a"):
        log_in(tmp_path).read()


class SlowFiles(FolderFiles):
    """Files with the latency of an object store."""

    def create(self, name: str, content: bytes) -> bool:
        time.sleep(0.015)
        return super().create(name, content)

    def read(self, name: str, max_bytes: int = 1 << 20) -> bytes | None:
        time.sleep(0.015)
        return super().read(name, max_bytes)

    def names(self, folder: str, after: str = "") -> list[str]:
        time.sleep(0.015)
        return super().names(folder, after)


def test_stream_of_another_process_delays_neither_a_reader_nor_a_writer_for_long(tmp_path: Path) -> None:
    stop = threading.Event()

    def stream() -> None:
        own, number = writer(log_in(SlowFiles(tmp_path))), 0
        while not stop.is_set():
            own.write(lambda _, number=number: [instance(f"stream/{number}")])
            number += 1

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        follower, own = writer(log_in(SlowFiles(tmp_path))), writer(log_in(SlowFiles(tmp_path)))
        assert [own.write(lambda _, each=each: [instance(f"own/{each}")]).sequence for each in range(3)]
        known = len(follower.catch_up())
        assert known >= 3
    finally:
        stop.set()
        thread.join()
    found: list[LoggedEntry] = log_in(tmp_path).read()
    assert follower.catch_up() == own.catch_up() == apply((), found)
    assert len(set(uids(found))) == len(found)
