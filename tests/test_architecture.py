"""The architecture: which package may import which, and the libraries that each package must work without."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import write_tiny_encoder

REPOSITORY = Path(__file__).parents[1]
# Each package may import itself and the packages before it.
PACKAGES = ("service", "trainer", "index_builder", "recollect")
# Libraries that a package works without. A library in the first list is never imported, not even inside a function.
NEVER_IMPORTS: dict[str, set[str]] = {
    "service": {"torch", "transformers", "safetensors", "scipy", "onnx", "onnxscript"},
    "trainer": {"fastapi", "starlette", "uvicorn", "structlog"},
    "index_builder": {"fastapi", "starlette", "uvicorn"},
    "recollect": {"torch", "fastapi"},
}
# Libraries that run code from the files that they read.
UNSAFE = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
# Libraries of extras that are imported when a user asks for them.
OPTIONAL = {"pyarrow", "pymilvus", "grpc", "ray", "boto3"}

# The beginning of a program in which the modules in argv[1] cannot be imported.
BLOCKED = """
import importlib, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing a module that is None fails
"""


def sources(package: str) -> list[Path]:
    return sorted((REPOSITORY / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def run_without(blocked: set[str], code: str, *arguments: Any) -> str:
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, ",".join(sorted(blocked)), *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    assert sources(package)
    later = {f"recollect.{name}" for name in PACKAGES[PACKAGES.index(package) + 1 :]}
    for path in sources(package):
        for name in imports(path):
            assert ".".join(name.split(".")[:2]) not in later, f"{path} imports {name}"
            assert name.split(".")[0] not in NEVER_IMPORTS[package] | UNSAFE, f"{path} imports {name}"


def test_the_service_answers_queries_if_the_training_libraries_are_not_installed(built: Any) -> None:
    code = "import recollect; print(recollect.open(sys.argv[2]).predict('Who must pay tax')[0].uid)"
    missing = NEVER_IMPORTS["service"] | OPTIONAL | {"recollect.trainer", "recollect.index_builder"}
    assert run_without(missing, code, built.store) == "Taxation\n"


def test_the_trainer_trains_if_no_web_server_is_installed(built: Any, tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "encoder", "bert")
    code = "import recollect; print(recollect.train(*sys.argv[2:3], out=sys.argv[3], encoder=sys.argv[4], max_steps=1))"
    run = tmp_path / "run"
    assert run_without(NEVER_IMPORTS["trainer"], code, built.dataset, run, encoder) == f"{run}\n"
