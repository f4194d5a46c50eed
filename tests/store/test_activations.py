"""Activations: numbered files of which the highest is current, by several processes, after crashes and wrong files."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recollect.core.errors import ActivationConflictError, ActivationRefusedError, BundleError, StoreError
from recollect.store.store import Store
from tests import forked
from tests.store.servers import WebServer, publish

# A file that a release wrote once: later releases must read it.
GOLDEN = Path(__file__).parent / "data" / "activation-1.json"

# Program that activates a version, and is killed before its call number N of a function that changes a file. It does
# this for N = 0, 1, ..., each time in a new copy of the store, until an activation is complete.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from recollect.store.store import Store
CHANGES = {"write", "fsync", "link", "unlink"}
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
# Program that activates a version 20 times, each time for the next generation. It prints the generations that it has
# created, and "lost" for each one that another process was faster to create.
OPERATOR = """
import sys, time
from pathlib import Path
from recollect.core.errors import ActivationConflictError
from recollect.store.store import Store
store = Store(Path(sys.argv[1]))
for generation in range(20):
    while (store.activation().generation if store.activation() else 0) < generation:
        time.sleep(0.0005)
    try:
        print(store.activate(sys.argv[2], by=sys.argv[2], expected_generation=generation).generation)
    except ActivationConflictError as error:
        print("lost", error)
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
    return [(record.generation, record.action, record.replaced, record.version) for record in store.log()]


def path_of(store: Store, generation: int) -> Path:
    return store.root / "activations" / f"{generation:08}.json"


def test_each_activation_and_rollback_creates_the_next_file(store: Store) -> None:
    assert store.activation() is None
    for version in "ABC":
        store.activate(version, why=f"try {version}")
    assert [store.rollback().version, store.rollback().version, store.current()] == ["B", "A", "A"]
    assert state(store) == (5, "A")
    with pytest.raises(StoreError, match="no version was current before; choose one with `recollect activate`"):
        store.rollback()
    assert [path.name for path in sorted((store.root / "activations").iterdir())] == [
        f"0000000{generation}.json" for generation in range(1, 6)
    ]
    written = json.loads(path_of(store, 2).read_bytes())
    assert (written["version"], written["replaced"], written["why"]) == ("B", "A", "try B")
    assert {"at", "by", "host", "action", "previous"} < written.keys()
    assert [record.generation for record in store.log()] == [1, 2, 3, 4, 5]


def test_file_of_an_earlier_release_is_read(store: Store) -> None:
    path_of(store, 1).parent.mkdir()
    path_of(store, 1).write_bytes(GOLDEN.read_bytes())
    (record,) = store.log()
    assert (record.version, record.candidate, record.replaced, record.previous) == ("B", "A", "C", ("A", "C"))
    assert (record.action, record.by, record.host, record.why) == ("candidate", "jane@host", "host", "compare")
    assert record.at.isoformat() == "2026-11-26T14:30:00.123456+00:00"
    assert store.rollback().version == "B"


def test_rollback_skips_versions_whose_bundle_was_removed(store: Store) -> None:
    for version in "ABC":
        store.activate(version)
    (store.bundles / "B").rename(store.root / "removed")
    assert store.rollback().version == "A"


def test_activation_is_refused_if_the_store_has_another_generation_than_expected(store: Store) -> None:
    store.activate("A", expected_generation=0)
    with pytest.raises(ActivationConflictError, match="expected generation 0, found 1; see `recollect log`"):
        store.activate("B", expected_generation=0)
    assert state(store) == (1, "A")
    store.activate("B", expected_generation=1)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[]", "JSON"),
        (b"{}", "generation"),
        (b'{"generation": 1e400}', "generation"),
        (b'{"version": "../A"}', "version"),
        (b'{"previous": ["../B"]}', "previous"),
        (b'{"format_version": 2}', "format_version"),
        (b'{"wormhole": 2}', "wormhole"),
        (b'{"generation": 1}', "the record of generation 1"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_wrong_file_is_reported_with_the_next_step_and_nothing_is_changed(
    store: Store, content: bytes, found: str
) -> None:
    store.activate("A")
    store.activate("B")
    if content.startswith(b'{"') and b"1e400" not in content:
        content = json.dumps(json.loads(path_of(store, 2).read_bytes()) | json.loads(content)).encode()
    path_of(store, 2).write_bytes(content)
    opened = Store(store.root)
    message = rf"00000002.json: expected an activation record, found .*{found}.*; restore the file .* or move it away"
    for call in (opened.activation, opened.current, opened.log, opened.rollback, lambda: opened.activate("C")):
        with pytest.raises(StoreError, match=message):
            call()
    assert path_of(store, 2).read_bytes() == content
    path_of(store, 2).rename(store.root / "away")
    assert (state(opened), opened.activate("C").generation) == ((1, "A"), 2)


def test_missing_number_is_reported_with_the_next_step_and_nothing_is_changed(store: Store) -> None:
    for version in "ABC":
        store.activate(version)
    path_of(store, 2).rename(store.root / "away")
    opened = Store(store.root)
    for call in (opened.activation, opened.log, opened.rollback, lambda: opened.activate("A")):
        with pytest.raises(StoreError, match="00000002.json: expected a file for each number up to 3, found none; res"):
            call()
    (store.root / "away").rename(path_of(store, 2))
    assert opened.rollback().version == "B"


def test_activation_that_is_killed_at_any_step_leaves_the_old_or_the_new_state(store: Store) -> None:
    store.activate("A")
    forked.run_code(KILLED, store.root)
    copies = sorted(store.root.parent.glob("copy-*"), key=lambda path: int(path.name.removeprefix("copy-")))
    states = [state(Store(copy)) for copy in copies]
    assert states == sorted(states)  # the steps before the change, then the steps after it
    assert set(states) == {(1, "A"), (2, "B")}
    for copy in map(Store, copies):
        generation, _ = state(copy)
        copy.activate("C")
        assert state(copy) == (generation + 1, "C")
        assert [entry[0] for entry in logged(copy)] == list(range(1, generation + 2))


def test_of_two_processes_that_activate_at_once_one_wins_and_the_other_learns_who(store: Store) -> None:
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda version: forked.run_code(OPERATOR, store.root, version), "AB"))
    lines = [line for each in done for line in each.stdout.splitlines()]
    assert sorted(int(line) for line in lines if line.isdigit()) == list(range(1, 21))
    lost = [line for line in lines if line.startswith("lost")]
    assert len(lost) == 20
    assert all("activated" in line or "expected generation" in line for line in lost)
    records = store.log()
    assert [record.generation for record in records] == list(range(1, 21))
    assert [record.replaced for record in records[1:]] == [record.version for record in records[:-1]]
    assert [record.by for record in records] == [record.version for record in records]


@pytest.mark.parametrize("location", ["folder", "url"])
def test_loser_of_two_activations_learns_who_did_what(
    store: Store, location: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target = store.root if location == "folder" else request.getfixturevalue("url")
    mine, other = (Store(target, None, tmp_path / "cache") for _ in range(2))
    if location == "url":
        for version in "AB":
            publish(mine, store.bundles / version, version)
    before = mine.activation()
    other.activate("B", by="ann@host", why="hotfix")
    mine.activation = lambda: before  # type: ignore[method-assign]  # it has read before the other one wrote
    with pytest.raises(ActivationConflictError) as error:
        mine.activate("A")
    assert "activations/00000001.json: ann@host activated B at the same time (hotfix); this command" in str(error.value)
    assert [record.version for record in other.log()] == ["B"]


def test_replica_of_a_web_server_finds_the_highest_number_by_probing(store: Store, tmp_path: Path) -> None:
    with WebServer(store.root).running() as web:
        assert Store(web.url, None, tmp_path / "cache").activation() is None
        follower = Store(web.url, None, tmp_path / "cache")
        for generation in range(1, 20):
            store.activate("AB"[generation % 2])
            assert state(Store(web.url, None, tmp_path / "cache")) == state(store)
        assert state(follower) == (19, "B")
        web.requests.clear()
        store.activate("C")
        assert state(follower) == (20, "C")
        assert [path.rpartition("/")[2] for path in web.requests] == [
            f"000000{generation}.json" for generation in (19, 20, 21)
        ]
        assert [record.generation for record in follower.log()] == list(range(1, 21))


def test_rollback_removes_the_candidate_before_it_changes_the_version(store: Store) -> None:
    store.activate("A")
    store.activate("B")
    store.activate("A", candidate=True)
    store.activate("C", candidate=True)  # replaces the other candidate
    removed = store.rollback()
    assert (removed.version, removed.candidate, removed.generation) == ("B", None, 5)
    assert store.rollback().version == "A"


def test_candidates_that_cannot_be_opened_beside_the_current_version_are_refused(store: Store) -> None:
    with pytest.raises(
        ActivationRefusedError, match="the candidate needs another version that is current, found none; activate"
    ):
        store.activate("B", candidate=True)
    before = store.activate("A")
    with pytest.raises(ActivationRefusedError, match="needs another version that is current, found A; activate"):
        store.activate("A", candidate=True)
    with pytest.raises(StoreError, match="expected a published version, found no 'D'"):
        store.activate("D", candidate=True)
    (store.bundles / "B" / "manifest.json").write_text("{}")
    with pytest.raises(BundleError):
        store.activate("B", candidate=True)
    assert store.activation() == before
