"""No program looks up a name, connects to another machine, or writes files in the user's home folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import write_tiny_encoder

REPOSITORY = Path(__file__).parents[2]


def test_programs_contact_nobody_and_write_nothing_at_home(built: Any, store: Path, tmp_path: Path) -> None:
    if not shutil.which("ip") or subprocess.run("unshare --net true", shell=True, check=False).returncode:
        pytest.skip("needs the programs unshare and ip, and the right to create a network namespace")
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    folders = {name: tmp_path / name for name in ("HOME", "TMPDIR", "out")}
    for folder in folders.values():
        folder.mkdir()
    program = [sys.executable, "-m", "tests.service.own_network", built.dataset, encoder, store, folders["out"]]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}  # and no CI
    variables |= {name: str(folders[name]) for name in ("HOME", "TMPDIR")}
    done = subprocess.run(
        ["unshare", "--net", *program], cwd=folders["out"], env=variables, stdout=subprocess.PIPE, check=True
    )
    found = json.loads(done.stdout)
    assert found["programs"] == []
    assert {"reports.example.com", "192.0.2.1"} < set(found["control"])
    written = [path for name in ("HOME", "TMPDIR") for path in folders[name].rglob("*") if path.is_file()]
    assert written == []
    assert {path.name for path in folders["out"].iterdir()} == {"answers.jsonl", "queries.txt", "run", "store"}
