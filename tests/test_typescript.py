"""The TypeScript example: its types come from a real service, it compiles, and it runs under node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import serving

EXAMPLE = Path(__file__).parents[1] / "examples" / "typescript"

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="needs node and npm")


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False
    )


def test_example_compiles_with_types_of_the_service_and_prints_labels(built: Any, tmp_path: Path) -> None:
    folder = tmp_path / "typescript"
    folder.mkdir()
    for name in ("package.json", "package-lock.json", "tsconfig.json", "suggest.ts"):
        shutil.copyfile(EXAMPLE / name, folder / name)
    installed = run(folder, "npm", "ci", "--no-audit", "--no-fund")
    assert installed.returncode == 0, installed.stderr
    with serving(built.store) as server:
        for script in ("types", "check"):
            done = run(folder, "npm", "run", script, RECOLLECT_URL=server.url)
            assert done.returncode == 0, done.stdout + done.stderr
        program = ("node", "build/suggest.js")
        answered = run(folder, *program, "How doctors treat high blood pressure", RECOLLECT_URL=server.url)
        refused = run(folder, *program, " ", RECOLLECT_URL=server.url)
    assert answered.returncode == 0, answered.stderr
    score, label = answered.stdout.splitlines()[0].split("  ")[:2]
    assert float(score) > 0
    assert label
    assert refused.returncode == 1
    assert refused.stderr == "422 invalid_request: query: the query is empty; send some words\n"
