"""Delete each folder of `recollect/extras/` in a copy of the tree, and run all other tests there.

    python -m tests.without_extras [NAME ...] [-- PYTEST ARGUMENTS]

Without names, all folders. The exit status is 1 if a test failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def passes_without(name: str, arguments: list[str]) -> bool:
    """Whether the other tests pass in a copy of the files that git knows, without the folder of an extra."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "checkout"
        shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        for folder in (copy / "recollect", copy / "tests"):
            shutil.rmtree(folder / "extras" / name)
        os.symlink(REPOSITORY / ".venv", copy / ".venv")
        print(f"---- without {name}", flush=True)  # noqa: T201
        command = [sys.executable, "-m", "pytest", "-q", *arguments]
        return subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}).returncode == 0


def main(arguments: list[str]) -> int:
    names, _, options = " ".join(arguments).partition("--")
    present = sorted(path.parent.name for path in REPOSITORY.glob("recollect/extras/*/__init__.py"))
    failed = [name for name in names.split() or present if not passes_without(name, options.split())]
    print(f"failed without: {', '.join(failed)}" if failed else "passed without each of them")  # noqa: T201
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
