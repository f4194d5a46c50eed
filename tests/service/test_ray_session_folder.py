"""Folders of Ray on this machine are removed, also those of killed commands."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.service.ray import session_folder as folders
from recollect.service.ray.session_folder import session_folder

_PROGRAM = """
import sys
from pathlib import Path
from recollect.service.ray import session_folder as folders

folders._PARENT = Path(sys.argv[1])
with folders.session_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, in which Ray's folders are created. All of them count as old."""
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setattr(folders, "_PARENT", Path(parent))
        monkeypatch.setattr(folders, "_LEAST_AGE_SECONDS", -1.0)
        yield Path(parent)


def test_the_folder_exists_for_the_time_of_the_block(parent: Path) -> None:
    with session_folder() as folder:
        Path(folder, "log").write_text("text")

    assert not list(parent.iterdir())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(parent: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, parent]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    folder = Path(process.stdout.readline().strip())

    with session_folder():
        assert folder.is_dir()  # its process runs
    process.kill()
    process.communicate()
    assert folder.is_dir()
    with session_folder():
        assert not folder.exists()


def test_a_young_folder_without_a_lock_stays(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_LEAST_AGE_SECONDS", 60.0)
    young = parent / "recollect-ray-session-young"
    young.mkdir()

    with session_folder():
        assert young.is_dir()
