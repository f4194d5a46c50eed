"""The log of a live memory in a folder: order, durability, interrupted writes, damage, full disks, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import structlog

from recollect.service.errors import MemoryLogError
from recollect.service.memory.entries import (
    PutInstance,
    RemoveInstance,
)
from recollect.service.memory_log.folder_segments import FolderSegments
from recollect.service.memory_log.groups import EncoderOfGroup
from recollect.service.memory_log.log import MemoryLog
from tests import forked
from tests.service.memory_log.logs import (
    append,
    folder_log,
    instance,
    label,
    uids,
)

REPOSITORY = Path(__file__).parents[3]


def segment(folder: Path, first: int = 1) -> Path:
    return folder / f"{first:020}.log"


def test_log_without_the_entries_that_the_bundle_contains_is_refused(tmp_path: Path) -> None:
    """A new entry would get the number of an entry that the bundle contains, and the next process would skip it."""
    missing = folder_log(tmp_path / "memory", after=2)
    assert missing.read() == []  # a copy of the bundle alone can be served
    assert not missing.exists
    with pytest.raises(MemoryLogError, match="expected the log whose first 2 entries the version contains"):
        append(missing, label("a"))
    append(folder_log(tmp_path / "memory"), label("a"))
    with pytest.raises(MemoryLogError, match="found a log of 1 entries; copy the log"):
        folder_log(tmp_path / "memory", after=2).read()
    append(folder_log(tmp_path / "memory"), label("b"))
    complete = folder_log(tmp_path / "memory", after=2)
    append(complete, label("c"))
    assert complete.exists


def test_entries_of_another_encoder_are_encoded_again(tmp_path: Path) -> None:
    instance = PutInstance("d", "text of d", ["a"], np.float32([1, 0, 0, 0]))
    append(folder_log(tmp_path / "memory"), label("a"), RemoveInstance("b"), instance, label("c"))
    other = EncoderOfGroup(bytes(32), 2)
    encoded: list[tuple[Sequence[str], Sequence[str]]] = []

    def encode(queries: Sequence[str], labels: Sequence[str]) -> np.ndarray:
        encoded.append((queries, labels))
        return np.float32([*([[0, 1]] * len(queries)), *([[0.6, 0.8]] * len(labels))])

    log = MemoryLog(FolderSegments(tmp_path / "memory"), other, encode)
    first, _, third, last = log.read()
    assert encoded == [(["text of d"], ["text of a", "text of c"])]
    vectors = [vars(each.entry)["vector"].tolist() for each in (first, third, last)]
    assert vectors == [pytest.approx([0.6, 0.8]), [0, 1], pytest.approx([0.6, 0.8])]
    append(log, PutInstance("new", "text", ["a"], np.float32([1, 0])))
    assert uids(folder_log(tmp_path / "memory").read()) == ["a", "b", "d", "c", "new"]


def test_interrupted_write_is_ignored_by_readers_and_replaced_by_the_next_write(tmp_path: Path) -> None:
    log = folder_log(tmp_path / "memory")
    append(log, label("a"))
    path = segment(tmp_path / "memory")
    start = path.stat().st_size
    append(log, instance("one", ("a",)), instance("two", ("a",)))
    whole = path.read_bytes()
    append(log, label("b"))
    for end in range(start + 1, len(whole)):
        path.write_bytes(whole[:end])
        assert uids(folder_log(tmp_path / "memory").read()) == ["a"], end
        path.write_bytes(whole[:end] + bytes(len(whole) - end))  # the file has its size, and zeros at its end
        if len(whole) - end >= 32:
            assert uids(folder_log(tmp_path / "memory").read()) == ["a"], end
    path.write_bytes(whole[:-1])
    with structlog.testing.capture_logs() as logs:
        again = folder_log(tmp_path / "memory")
        append(again, label("c"))
        append(again, label("d"))
    assert [(each["event"], each["offset"]) for each in logs] == [("memory_log_repaired", start)]
    assert uids(folder_log(tmp_path / "memory").read()) == ["a", "c", "d"]


def test_damage_is_an_error_that_names_file_place_and_next_step(tmp_path: Path) -> None:
    log = folder_log(tmp_path / "memory")
    append(log, label("a"))
    path = segment(tmp_path / "memory")
    start = path.stat().st_size
    append(log, label("b"))
    append(log, label("c"))
    whole = path.read_bytes()
    for place in range(start, start + 220):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        reader = folder_log(tmp_path / "memory")
        with pytest.raises(MemoryLogError) as caught:
            reader.read()
        assert str(caught.value).startswith(f"{path}: byte {start}: expected")
        assert f"truncate -s {start}" in str(caught.value)
    with pytest.raises(MemoryLogError), reader.exclusive():
        pytest.fail("a damaged log must not be written to")
    path.write_bytes(whole)
    assert uids(reader.read()) == ["a", "b", "c"]  # the process goes on after the repair


def test_missing_and_shortened_segments_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderSegments, "max_bytes", 1)
    log, reader = folder_log(tmp_path / "memory"), folder_log(tmp_path / "memory")
    for uid in "abc":
        append(log, label(uid))
    reader.read()
    (tmp_path / "memory" / segment(tmp_path, 3).name).write_bytes(b"")
    with pytest.raises(MemoryLogError, match="expected at least the .* bytes that were read before, found 0"):
        reader.read()
    first, second = segment(tmp_path / "memory"), segment(tmp_path / "memory", 2)
    content = first.read_bytes()
    first.write_bytes(content[:-3])  # an interrupted write is possible only at the end of the last segment
    assert folder_log(tmp_path / "memory").read() == []
    first.write_bytes(content + second.read_bytes()[:-3])
    with pytest.raises(MemoryLogError, match="expected the end of the segment, because another one follows"):
        folder_log(tmp_path / "memory").read()
    first.write_bytes(second.read_bytes())
    with pytest.raises(MemoryLogError, match="expected entry 1 after the group before, found entry 2"):
        folder_log(tmp_path / "memory").read()


# Program that appends entries, and prints the uid of each entry after its acknowledgement.
APPENDS = """
import sys
from pathlib import Path
from tests.service.memory_log.logs import folder_log, instance, writer
own = writer(folder_log(Path(sys.argv[1])))
number = 0
while True:
    uid = f"{sys.argv[2]}/{number}"
    own.write(lambda memory: [instance(uid), instance(uid + "!")])
    print(uid, flush=True)
    number += 1
"""


def appending(folder: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPENDS, str(folder), name]
    return forked.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def acknowledged_until_killed(process: subprocess.Popen[str], count: int) -> list[str]:
    """Kill a process after it has acknowledged `count` uids, and return the acknowledged uids."""
    assert process.stdout is not None
    with process.stdout:
        lines = [process.stdout.readline() for _ in range(count)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
    process.wait()
    return [line.strip() for line in lines if line.endswith("\n")]


def test_two_processes_that_are_killed_lose_no_acknowledged_write(tmp_path: Path) -> None:
    acknowledged = []
    for start in range(2):
        processes = [appending(tmp_path / "memory", f"{start}.{name}") for name in range(2)]
        for number, process in enumerate(processes):
            acknowledged += acknowledged_until_killed(process, 7 + 13 * number)
        append(folder_log(tmp_path / "memory"), label(f"after {start}"))
    found = folder_log(tmp_path / "memory").read()
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    assert set(acknowledged) <= set(uids(found))
    assert len(set(uids(found))) == len(found)
    changes = {uid.rstrip("!") for uid in uids(found) if "/" in uid}
    assert {f"{uid}!" for uid in changes} <= set(uids(found))  # a change is in the log as a whole


# Program that appends entries until a file may not grow any more, as on a full disk, and then appends again.
FULL = """
import resource, sys
from pathlib import Path
from recollect.service.errors import MemoryLogError
from tests.service.memory_log.logs import folder_log, instance, writer
own = writer(folder_log(Path(sys.argv[1])))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
written = 0
try:
    for written in range(1000):
        own.write(lambda memory: [instance(f"before {written}")])
except MemoryLogError as error:
    print(error)
assert len(own.memory) == written
assert len(folder_log(Path(sys.argv[1])).read()) == written
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(own.write(lambda memory: [instance("after")]) == written + 1)
"""


def test_full_disk_refuses_the_write_and_later_writes_work(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "memory")]
    done = forked.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"{segment(tmp_path / 'memory')}: expected a file that can be written, found: File too large; this write "
        "has no effect: free some space and try again",
        "True",
    ], done.stderr
    found = uids(folder_log(tmp_path / "memory").read())
    assert found == [*(f"before {number}" for number in range(len(found) - 1)), "after"]
