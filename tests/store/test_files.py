"""The files of a store: each is created once, in a folder and in a bucket, by several processes and after faults."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recollect.core.errors import StoreError
from recollect.store.files import FolderFiles
from recollect.store.object_folder import ObjectFolder, StoreFiles
from tests import forked
from tests.store.servers import FaultyProxy

# Program that creates the files 1 to 50 in a folder, and prints the numbers that it has created.
WRITER = """
import sys
from pathlib import Path
from recollect.store.files import FolderFiles
files = FolderFiles(Path(sys.argv[1]))
for number in range(1, 51):
    if files.create(f"numbered/{number}", sys.argv[2].encode() * 10_000):
        print(number)
"""
# Program that is killed before its call number N of a function that changes a file, for N = 0, 1, ..., each time while
# it creates the file N. The last file is complete.
KILLED = """
import os, signal, sys
from pathlib import Path
from recollect.store.files import FolderFiles
CHANGES = {"open", "write", "fsync", "link", "unlink", "mkdir"}
killed, number = True, 0
while killed:
    child = os.fork()
    if child == 0:
        calls = iter(range(number))
        def before_call(frame, event, function):
            if event == "c_call" and function.__name__ in CHANGES and next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(before_call)
        FolderFiles(Path(sys.argv[1])).create(f"a/b/{number}", b"x" * 1000)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    number += 1
print(number)
"""
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from recollect.core.errors import StoreError
from recollect.store.files import FolderFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    FolderFiles(Path(sys.argv[1])).create("a", b"x" * 1001)
except StoreError as error:
    print(error)
"""


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the S3 server; the environment variables name it."""
    proxy = FaultyProxy(s3)
    with proxy.running() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield proxy


@pytest.fixture(params=["folder", "url"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFiles:
    if request.param == "folder":
        return FolderFiles(tmp_path / "store")
    return ObjectFolder(request.getfixturevalue("url"))


def test_file_is_created_once_and_never_changes(files: StoreFiles) -> None:
    assert files.create("memory/2.json", b"first")
    assert not files.create("memory/2.json", b"second")
    assert (files.read("memory/2.json"), files.read("memory/3.json")) == (b"first", None)
    assert files.create("memory/1.json", b"")
    assert files.create("memory/3.json", b"x" * 9_000_000)
    assert (files.names("memory"), files.names("other")) == (["1.json", "2.json", "3.json"], [])
    assert files.names("memory", after="1.json") == ["2.json", "3.json"]
    assert files.names("memory", after="3") == ["3.json"]
    with pytest.raises(StoreError, match="memory/3.json: expected at most 1,048,576 bytes, found more; "):
        files.read("memory/3.json")
    assert len(files.read("memory/3.json", 9_000_000) or b"") == 9_000_000
    files.delete("memory/1.json", "memory/9.json")
    assert files.names("memory") == ["2.json", "3.json"]


def test_of_several_processes_one_creates_each_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        created = [each.stdout.split() for each in pool.map(lambda own: forked.run_code(WRITER, tmp_path, own), "abc")]
    winners = {int(number): writer for writer, numbers in zip("abc", created, strict=True) for number in numbers}
    assert sorted(winners) == list(range(1, 51))
    assert sum(map(len, created)) == 50
    files = FolderFiles(tmp_path)
    assert all(files.read(f"numbered/{each}") == winners[each].encode() * 10_000 for each in winners)
    assert not list(tmp_path.rglob(".*"))


def test_of_several_threads_one_creates_each_object(url: str) -> None:
    def writer(content: bytes) -> int:
        files = ObjectFolder(url)
        return sum(files.create(f"numbered/{number}", content) for number in range(20))

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(writer, (b"a", b"b", b"c"))) == 20


def test_writer_that_is_killed_at_any_step_leaves_a_complete_file_or_none(tmp_path: Path) -> None:
    steps = int(forked.run_code(KILLED, tmp_path).stdout)
    files = FolderFiles(tmp_path)
    assert steps > 6
    contents = [files.read(f"a/b/{number}") for number in range(steps)]
    assert set(contents) == {None, b"x" * 1000}
    assert contents[-1] is not None
    assert files.names("a/b") == sorted(str(number) for number, content in enumerate(contents) if content)


def test_full_disk_leaves_no_file(tmp_path: Path) -> None:
    message = "expected a path that can be written, found: File too large; free some space and try again"
    assert forked.run_code(FULL_DISK, tmp_path).stdout == f"{tmp_path}/a: {message}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lost", [1, 3], ids=["first attempt", "all attempts of obstore"])
def test_write_whose_answer_was_lost_is_recognised_by_its_content(proxy: FaultyProxy, url: str, lost: int) -> None:
    files = ObjectFolder(url)
    assert files.create("0", b"")
    proxy.lost_answers = lost
    assert files.create("1", b"own")
    proxy.lost_answers = 1
    assert not files.create("1", b"other")
    assert files.read("1") == b"own"


def test_server_that_ignores_if_none_match_is_refused_before_the_first_write(proxy: FaultyProxy, url: str) -> None:
    proxy.ignores_conditions = True
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"s3://\w+/models/store: expected a server with conditional writes .If-None"
        ):
            ObjectFolder(url).create("activations/1", b"a")
    assert ObjectFolder(url).names("activations") == []
