"""Three floors and a door: who may import whom, and what each floor runs without."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
FLOORS = ("trainer", "index_builder", "service")
OURS = {*FLOORS, "recollect"}

# What each floor may import of ours, and of others' when that is a promise.
MAY_IMPORT: dict[str, set[str]] = {
    "trainer": {"trainer"},
    "service": {"service"},
    "index_builder": {"index_builder", "trainer", "service"},
    "recollect": set(),
}
NEVER_IMPORTS: dict[str, set[str]] = {
    "trainer": {"fastapi", "starlette", "uvicorn", "onnxruntime", "structlog"},
    "service": {"torch", "transformers", "safetensors", "pyarrow", "scipy", "onnx", "onnxscript", "tqdm"},
    "index_builder": {"fastapi", "starlette", "uvicorn"},
    "recollect": {"torch", "numpy", "fastapi"},
}
# What opens any file that an attacker may have written as code.
UNSAFE = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}

# A process in which the modules in argv[1] cannot be imported.
BLOCKED = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing what is None here fails as if it were not there
def import_all(floor):
    package = importlib.import_module(floor)
    names = [module.name for module in pkgutil.walk_packages(package.__path__, floor + ".")]
    for name in names:
        importlib.import_module(name)
    return names
"""


def sources(floor: str) -> list[Path]:
    return [REPOSITORY / "recollect.py"] if floor == "recollect" else sorted((REPOSITORY / floor).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Top-level names of all that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield path.relative_to(REPOSITORY).parts[0] if node.level else str(node.module).split(".")[0]


def names(path: Path) -> set[str]:
    """All names that a file uses, imported, called or defined."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def run_blocked(blocked: set[str], code: str, *arguments: Any) -> str:
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, ",".join(sorted(blocked)), *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("floor", [*FLOORS, "recollect"])
def test_each_floor_imports_only_what_the_table_allows(floor: str) -> None:
    assert sources(floor)
    for path in sources(floor):
        found = set(imports(path))
        assert found & OURS <= MAY_IMPORT[floor], path
        assert not found & NEVER_IMPORTS[floor], path
        assert not found & UNSAFE, path


def test_imports_inside_functions_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    path = tmp_path / "service" / "x.py"
    path.parent.mkdir()
    path.write_text("def f():\n    import torch.nn as nn\n    from trainer.memory import Memory\n    from . import y\n")
    assert list(imports(path)) == ["torch", "trainer", "service"]


def test_the_service_opens_bundles_through_the_store_alone_which_knows_whose_signature_they_need() -> None:
    opening = {path.stem for path in sources("service") if "open_bundle" in names(path)}
    assert opening == {"store"}


def test_no_floor_but_the_index_builder_reads_a_private_key() -> None:
    reading = {path for floor in OURS for path in sources(floor) if "load_pem_private_key" in names(path)}
    assert reading == {REPOSITORY / "index_builder" / "signing.py"}


def test_the_door_names_its_floors_modules_only_as_text() -> None:
    from recollect import VERBS

    for verb in VERBS.values():
        assert (REPOSITORY / verb.module.replace(".", "/")).with_suffix(".py").is_file()
        assert verb.module.split(".")[0] in FLOORS


def test_the_service_serves_where_training_is_not_installed(road: Any) -> None:
    blocked = NEVER_IMPORTS["service"] | {"trainer", "index_builder"}
    code = """
from pathlib import Path
print(*import_all("service"))
from service.options import resolve_options
from service.predictor.predictor import Predictor
from service.store.store import Store
predictor = Predictor.open(Store(Path(sys.argv[2])).open(sys.argv[3]), threads=1)
print(predictor.predict(["Who must pay tax"], resolve_options(predictor.defaults)).answers[0].labels[0].uid)
"""
    modules, best = run_blocked(blocked, code, road.store, road.version).splitlines()
    assert set(modules.split()) >= {
        "service.http.app",
        "service.cli",
        "service.predictor.predictor",
        "service.store.store",
    }
    assert best == "Taxation"


def test_the_trainer_imports_where_no_web_server_is_installed() -> None:
    blocked = NEVER_IMPORTS["trainer"] | {"service", "index_builder"}
    modules = run_blocked(blocked, 'print(*import_all("trainer"))').split()
    assert {"trainer.run", "trainer.train", "trainer.memory"} <= set(modules)


def test_the_index_builder_imports_where_no_web_server_is_installed() -> None:
    modules = run_blocked(NEVER_IMPORTS["index_builder"], 'print(*import_all("index_builder"))')
    assert "index_builder.build" in modules.split()
