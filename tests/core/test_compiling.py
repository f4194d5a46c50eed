"""The loops of an answer are compiled when they are first called, and a cache of the installation is used as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# Merges two lists of keys, and prints the result.
MERGE = """
import numpy as np
from recollect.core import kernels
first, second = (np.array([[similarity]], dtype=np.float32) for similarity in (0.5, 0.75))
keys = np.zeros((1, 1), dtype=np.int64)
print(*kernels.merge(first, keys, second, keys, 7, 2)[1][0])
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, in which no folder of a cache can be written."""
    ignored = shutil.ignore_patterns("__pycache__", "extras", "compiled")
    shutil.copytree(REPOSITORY / "recollect", tmp_path / "copy" / "recollect", symlinks=True, ignore=ignored)
    (tmp_path / "copy" / "recollect" / "core" / "__pycache__").touch()  # a file, because root may write to any folder
    return tmp_path / "copy"


def run(package: Path, code: str = MERGE, **variables: str) -> tuple[str, str]:
    """Run Python code with a copy of the package, and return the lines on stdout and on stderr."""
    own = {
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=others | own | variables,
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


def test_first_process_says_in_one_line_that_it_compiles_and_the_next_one_loads(package: Path, tmp_path: Path) -> None:
    line = "compiling loops for this machine, which takes some seconds; they are "
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(package, MERGE + "kernels.near_codes.compile()", **cache) == ("7 0", f"{line}kept for later")
    assert run(package, MERGE + "kernels.near_codes.compile()", **cache) == ("7 0", "")
    files = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*.nbi")}
    assert files == {"kernels.merge", "kernels.near_codes"}  # others were not called
    answer, said = run(package)
    assert (answer, said) == (
        "7 0",
        f"{line}not kept: set NUMBA_CACHE_DIR to a folder that can be written",
    )


def test_cache_of_the_installation_is_loaded_where_no_folder_can_be_written(package: Path, tmp_path: Path) -> None:
    installed = package / "recollect" / "core" / "compiled"
    installed.mkdir()
    run(package, "from recollect.core import kernels; kernels.merge.compile()")
    written = {path.name: path.stat().st_mtime_ns for path in installed.iterdir()}
    assert {name.partition("-")[0] for name in written} == {"kernels.merge"}
    assert run(package) == ("7 0", "")
    # A loop is loaded from it on another CPU, too: the code is not compiled for the CPU of this machine.
    cpu = MERGE + "import numba; print(numba.config.CPU_NAME, kernels.merge.__name__)"
    assert run(package, cpu)[0].splitlines()[1].split()[0] in ("x86-64-v3", "generic")
    assert {path.name: path.stat().st_mtime_ns for path in installed.iterdir()} == written


def test_loop_that_the_cache_of_the_installation_lacks_is_compiled_although_nothing_can_be_written(
    package: Path,
) -> None:
    (package / "recollect" / "core" / "compiled").symlink_to("/proc")  # a folder that nobody can write
    answer, said = run(package)
    assert answer == "7 0"
    assert said.count("\n") == 0
    assert said.startswith("compiling loops ")


def test_all_loops_have_types_for_which_they_compile(tmp_path: Path) -> None:
    """The loops in the cache of the tests are loaded, so that this test is fast after the first time."""
    code = "from recollect.core import kernels; kernels.compile_all(); kernels.compile_others()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
