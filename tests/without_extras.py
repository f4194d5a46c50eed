"""Delete folders of `recollect/extras/` in a copy of the tree, and run all other tests there.

    python -m tests.without_extras [NAME ...] [-- PYTEST ARGUMENTS]

With names, delete each of these folders alone; without names, all folders together. No extra imports another one
(`tests/test_architecture.py`), so the second form covers the first. The exit status is 1 if a test failed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def passes_without(names: list[str], arguments: list[str]) -> bool:
    """Whether the other tests pass in a copy of the tree without the folders of some extras."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "checkout"
        shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        for folder, name in itertools.product(("recollect", "tests"), names):
            shutil.rmtree(copy / folder / "extras" / name)
        os.symlink(REPOSITORY / ".venv", copy / ".venv")
        print(f"---- without {', '.join(names)}", flush=True)  # noqa: T201
        command = [sys.executable, "-m", "pytest", "-q", *arguments]
        return subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}).returncode == 0


def main(arguments: list[str]) -> int:
    names, _, options = " ".join(arguments).partition("--")
    present = sorted(path.parent.name for path in REPOSITORY.glob("recollect/extras/*/__init__.py"))
    deletions = [[name] for name in names.split()] or [present]
    passed = [passes_without(deletion, options.split()) for deletion in deletions]
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
