"""The activation record and the log of a store: activations, rollbacks, crashes, full disks and damaged files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recollect.service.errors import ActivationConflictError, ActivationRefusedError, BundleError, StoreError
from recollect.service.store.store import Store
from tests import forked

REPOSITORY = Path(__file__).parents[3]

# Program that activates a version, and is killed before its call number N of a function that changes a file. It does
# this for N = 0, 1, ..., each time in a new copy of the store, until an activation is complete.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from recollect.service.store.store import Store
CHANGES = {"write", "fsync", "replace", "rename", "unlink", "ftruncate"}
root, killed, number = Path(sys.argv[1]), True, 0
while killed:
    copy = root.parent / f"copy-{number}"
    shutil.copytree(root, copy)
    child = os.fork()
    if child == 0:
        store, calls = Store(copy), iter(range(number))
        def before_call(frame, event, function):
            if event == "c_call" and function.__name__ in CHANGES and next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(before_call)
        store.activate("B")
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    number += 1
"""
# Program that activates B while no file may grow beyond a number of bytes, as on a full disk, and prints the error.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from recollect.service.errors import StoreError
from recollect.service.store.store import Store
store = Store(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    store.activate("B")
except (OSError, StoreError) as error:
    print(error)
"""


@pytest.fixture
def store(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    """A store with versions A, B and C; no version is current."""
    store = Store(tmp_path / "store")
    for version in "ABC":
        write_bundle(store.bundles / version, version)
    return store


def state(store: Store) -> tuple[int, str]:
    record = store.activation()
    assert record is not None
    return record.generation, record.version


def logged(store: Store) -> list[tuple[int, str, str | None, str]]:
    return [(entry.generation, entry.action, entry.from_, entry.to) for entry in store.log()]


def run_program(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return forked.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def test_each_activation_and_rollback_raises_the_generation_by_one(store: Store) -> None:
    assert store.activation() is None
    for version in "ABC":
        store.activate(version)
    assert state(store) == (3, "C")
    assert [store.rollback().version, store.rollback().version, store.current()] == ["B", "A", "A"]
    assert state(store) == (5, "A")
    with pytest.raises(StoreError, match="no version was current before; choose one with `recollect activate`"):
        store.rollback()
    assert state(store) == (5, "A")
    assert (store.root / "CURRENT").read_text() == "A\n"


def test_rollback_skips_versions_whose_bundle_was_removed(store: Store) -> None:
    for version in "ABC":
        store.activate(version)
    store.path("B").rename(store.root / "removed")
    assert store.rollback().version == "A"


def test_activation_is_refused_if_the_store_has_another_generation_than_expected(store: Store) -> None:
    store.activate("A", expected_generation=0)
    with pytest.raises(ActivationConflictError, match="expected generation 0, found 1; see `recollect log`"):
        store.activate("B", expected_generation=0)
    assert state(store) == (1, "A")
    store.activate("B", expected_generation=1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"generation": 1e400, "version": "A"}',
        b'{"generation": -1, "version": "A"}',
        b'{"generation": 3, "version": "../A"}',
        b'{"generation": 3, "version": "A", "previous": ["../B"]}',
        b'{"generation": 3, "version": "A", "format_version": 2}',
        b"[" * 100_000,
    ],
)
def test_damaged_record_is_reported_and_the_next_activation_gets_a_generation_that_was_never_used(
    store: Store, content: bytes
) -> None:
    store.activate("A")
    store.activate("B")
    (store.root / "ACTIVATION").write_bytes(content)
    for read in (store.activation, store.current, store.log, store.rollback):
        with pytest.raises(StoreError, match="ACTIVATION: expected an activation record, found a wrong one .*; run `"):
            read()
    store.activate("A")
    assert state(store) == (3, "A")
    assert store.rollback().version == "B"


def test_damaged_lines_of_the_log_are_skipped_and_a_missing_line_is_completed(store: Store) -> None:
    store.activate("A")
    log = store.root / "LOG"
    log.write_bytes(log.read_bytes() + b'\xff\n[1]\n{"to": "../B"}\n')
    store.activate("B")
    log.write_bytes(log.read_bytes()[:-40])  # the writer was killed within the line
    assert [entry.generation for entry in store.log()] == [1, 2]
    store.activate("C")
    assert logged(store) == [(1, "activate", None, "A"), (2, "activate", "A", "B"), (3, "activate", "B", "C")]
    last = [json.loads(line) for line in log.read_text(errors="replace").splitlines()[-2:]]
    assert [entry["generation"] for entry in last] == [2, 3]


def test_activation_that_is_killed_at_any_step_leaves_the_old_or_the_new_state(store: Store) -> None:
    store.activate("A")
    run_program(KILLED, store.root)
    copies = sorted(store.root.parent.glob("copy-*"), key=lambda path: int(path.name.removeprefix("copy-")))
    states = [state(Store(copy)) for copy in copies]
    assert states == sorted(states)  # the steps before the change, then the steps after it
    assert set(states) == {(1, "A"), (2, "B")}
    assert len(states) > 8
    for copy in map(Store, copies):
        before = logged(copy)
        generation, _ = state(copy)
        copy.activate("C")
        assert state(copy) == (generation + 1, "C")
        assert (copy.root / "CURRENT").read_text() == "C\n"
        assert logged(copy)[:-1] == before
        assert [entry[0] for entry in logged(copy)] == list(range(1, generation + 2))
        assert not list(copy.root.glob(".*"))


def test_full_disk_leaves_the_old_state_or_the_new_state_with_a_message(store: Store) -> None:
    store.activate("A", why="x" * 400)
    error = run_program(FULL_DISK, store.root, 100)
    assert "ACTIVATION" in error
    assert "File too large" in error
    assert (state(store), list(store.root.glob(".*"))) == ((1, "A"), [])
    log = (store.root / "LOG").read_bytes()
    error = run_program(FULL_DISK, store.root, 500)  # enough for the record, but not for the log
    assert error.startswith("B is current, but CURRENT and LOG could not be completed: ")
    assert error.endswith("the next activation completes them\n")
    assert (state(store), (store.root / "LOG").read_bytes()) == ((2, "B"), log)
    store.activate("C")
    assert [entry.generation for entry in store.log()] == [1, 2, 3]


def test_activations_at_the_same_time_get_different_generations(store: Store) -> None:
    program = """
import sys
from pathlib import Path
from recollect.service.store.store import Store
for _ in range(10):
    print(Store(Path(sys.argv[1])).activate(sys.argv[2]).generation)
"""
    with ThreadPoolExecutor(3) as pool:
        printed = list(pool.map(lambda version: run_program(program, store.root, version), "ABC"))
    assert sorted(int(line) for each in printed for line in each.split()) == list(range(1, 31))
    assert [entry.generation for entry in store.log()] == list(range(1, 31))
    entries = store.log()
    assert [entry.from_ for entry in entries[1:]] == [entry.to for entry in entries[:-1]]
    assert store.current() == entries[-1].to
    assert (store.root / "CURRENT").read_text().strip() == store.current()


def test_rollback_removes_the_candidate_before_it_changes_the_version(store: Store) -> None:
    store.activate("A")
    store.activate("B")
    store.add_candidate("A")
    store.add_candidate("C")  # replaces the other candidate
    removed = store.rollback()
    assert (removed.version, removed.candidate, removed.generation) == ("B", None, 5)
    assert store.rollback().version == "A"


def test_candidates_that_cannot_be_opened_beside_the_current_version_are_refused(store: Store) -> None:
    with pytest.raises(ActivationRefusedError, match="no version is current; run `recollect activate B`"):
        store.add_candidate("B")
    before = store.activate("A")
    with pytest.raises(ActivationRefusedError, match="must differ from the current version, found A for both"):
        store.add_candidate("A")
    with pytest.raises(StoreError, match="expected a published version, found no 'D'"):
        store.add_candidate("D")
    (store.path("B") / "manifest.json").write_text("{}")
    with pytest.raises(BundleError):
        store.add_candidate("B")
    assert store.activation() == before
