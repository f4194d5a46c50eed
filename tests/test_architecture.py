"""The architecture: the imports that each package and folder may have, and the libraries it must work without."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("trainer", "index_builder", "service")
MODULES = {*PACKAGES, "recollect"}
# The submodule `recollect.sklearn` uses the functions of `recollect`, as a program of a user does.
SUBMODULE = "index_builder/estimator/sklearn.py"

# Modules of this repository that each package may import, at the top of a file or inside a function.
MAY_IMPORT: dict[str, set[str]] = {
    "trainer": {"trainer"},
    "service": {"service"},
    "index_builder": {"index_builder", "trainer", "service"},
    "recollect": {"index_builder", "trainer", "service"},
}
# Libraries that a package must never import, so that it runs where they are not installed.
NEVER_IMPORTS: dict[str, set[str]] = {
    "trainer": {"fastapi", "starlette", "uvicorn", "onnxruntime", "structlog"},
    "service": {
        "torch",
        "transformers",
        "safetensors",
        "pyarrow",
        "scipy",
        "onnx",
        "onnxscript",
        "tqdm",
        "pymilvus",
        "grpc",
        "ray",
    },
    "index_builder": {"fastapi", "starlette", "uvicorn"},
    "recollect": {"torch", "numpy", "fastapi"},
}
# Modules that are imported only if a user asks for them, and the libraries that they need in addition.
OPTIONAL_MODULES = {
    "service.bulk.parquet_input": {"pyarrow"},
    "service.bulk.parquet_output": {"pyarrow"},
    "service.milvus.client": {"pymilvus", "grpc"},
    "service.ray.cluster": {"ray"},
    "service.ray.pool": {"ray"},
}
# Libraries that run code from the files that they read.
UNSAFE = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}

# Folders and files of service/. Each may import itself, and the folders and files above it in this list.
SERVICE_ORDER = (
    "printable",
    "errors",
    "bundle",
    "options",
    "addresses",
    "settings",
    "serve_settings",
    "command_settings",
    "threads",
    "authenticated",
    "reloaded_file",
    "telemetry",
    "storage",
    "store",
    "canary",
    "lexical",
    "ranking",
    "milvus",
    "memory",
    "memory_log",
    "predictor",
    "model",
    "export",
    "ray",
    "bulk",
    "extend",
    "redis_client",
    "versions",
    "serving",
    "playground",
    "http",
    "connection",
    "process",
    "cli",
)

# The beginning of a program in which the modules in argv[1] cannot be imported.
BLOCKED = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing a module that is None fails
def import_all(name, but=()):
    package = importlib.import_module(name)
    names = [module.name for module in pkgutil.walk_packages(package.__path__, name + ".") if module.name not in but]
    for name in names:
        importlib.import_module(name)
    return names
"""


def sources(package: str) -> list[Path]:
    if package == "recollect":
        return [REPOSITORY / "recollect.py"]
    return [path for path in sorted((REPOSITORY / package).rglob("*.py")) if path != REPOSITORY / SUBMODULE]


def imports(path: Path) -> Iterator[str]:
    """Yield the top-level name of every module that a file imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield path.relative_to(REPOSITORY).parts[0] if node.level else str(node.module).split(".")[0]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def import_graph(package: str) -> dict[str, set[str]]:
    """For each module of a package, find the other modules of the package that it imports anywhere in the file."""
    paths = {module_name(path): path for path in sources(package)}
    graph = {}
    for module, path in paths.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                submodules = {f"{node.module}.{alias.name}" for alias in node.names} & paths.keys()
                found |= submodules or {str(node.module)}
        graph[module] = found & paths.keys()
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle; an empty list if there is no cycle."""
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in finished:
            return []
        for imported in sorted(graph[module]):
            if cycle := visit(imported, [*path, module]):
                return cycle
        finished.add(module)
        return []

    return next((cycle for module in sorted(graph) if (cycle := visit(module, []))), [])


def names(path: Path) -> set[str]:
    """All names that a file imports or uses."""
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


@pytest.mark.parametrize("package", [*PACKAGES, "recollect"])
def test_each_package_imports_only_the_modules_in_the_table(package: str) -> None:
    assert sources(package)
    for path in sources(package):
        found = set(imports(path))
        assert found & MODULES <= MAY_IMPORT[package], path
        assert not found & NEVER_IMPORTS[package] - OPTIONAL_MODULES.get(module_name(path), set()), path
        assert not found & UNSAFE, path


def test_import_check_finds_imports_inside_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    path = tmp_path / "service" / "x.py"
    path.parent.mkdir()
    path.write_text(
        "def f():\n    import torch.nn as nn\n    from trainer.memory.memory import Memory\n    from . import y\n"
    )
    assert list(imports(path)) == ["torch", "trainer", "service"]


def test_each_folder_of_the_service_imports_only_folders_above_it() -> None:
    graph = import_graph("service")
    assert {module.split(".")[1] for module in graph if module != "service"} == set(SERVICE_ORDER)
    wrong = [
        f"{module} imports {other}"
        for module, imported in sorted(graph.items())
        for other in sorted(imported)
        if SERVICE_ORDER.index(other.split(".")[1]) > SERVICE_ORDER.index(module.split(".")[1])
    ]
    assert wrong == []


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks", "loadtests"])
def test_no_package_has_an_import_cycle(package: str) -> None:
    assert find_cycle(import_graph(package)) == []


def test_cycle_check_finds_cycles_through_any_kind_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    (tmp_path / "service" / "b").mkdir(parents=True)
    (tmp_path / "service" / "a.py").write_text("import service.c\nfrom service.b import x\n")
    (tmp_path / "service" / "b" / "x.py").write_text("if TYPE_CHECKING:\n    from service.c import C\n")
    (tmp_path / "service" / "c.py").write_text("def f():\n    from service import a\n")
    assert find_cycle(import_graph("service")) == ["service.a", "service.b.x", "service.c"]
    (tmp_path / "service" / "c.py").write_text("")
    assert find_cycle(import_graph("service")) == []


def test_the_service_opens_bundles_only_in_the_store_module_which_checks_signatures() -> None:
    opening = {module_name(path) for path in sources("service") if "open_bundle" in names(path)}
    assert opening == {"service.storage.verification"}


def test_only_programs_that_sign_read_private_keys() -> None:
    reading = {path for package in MODULES for path in sources(package) if "load_pem_private_key" in names(path)}
    assert reading == {REPOSITORY / "service" / "bundle" / "signing_key.py"}
    calling = {path for package in MODULES for path in sources(package) if "read_signing_key" in names(path)} - reading
    assert {path.relative_to(REPOSITORY).as_posix() for path in calling} == {
        "index_builder/build.py",
        "index_builder/live_memory/compact.py",
        "service/cli.py",
        "service/model.py",  # signs the changes of a program
        "service/process/worker.py",  # signs the changes that a writable service accepts
    }


def test_recollect_py_names_existing_modules() -> None:
    from recollect import VERBS

    for verb in VERBS.values():
        assert (REPOSITORY / verb.module.replace(".", "/")).with_suffix(".py").is_file()
        assert verb.module.split(".")[0] in PACKAGES


def test_serve_help_loads_no_numeric_or_cryptographic_library() -> None:
    code = 'import recollect; sys.exit(recollect.main(["serve", "--help"]))'
    assert "--port" in run_blocked({"cryptography", "numpy", "faiss", "onnxruntime"}, code)


def test_the_service_answers_queries_if_the_training_libraries_are_not_installed(built: Any) -> None:
    blocked = NEVER_IMPORTS["service"] | {"trainer", "index_builder"}
    code = """
from pathlib import Path
print(*import_all("service", sys.argv[4].split(",")))
from service.model import open_model
print(open_model(sys.argv[2], sys.argv[3]).predict("Who must pay tax")[0].uid)
"""
    modules, best = run_blocked(blocked, code, built.store, built.version, ",".join(OPTIONAL_MODULES)).splitlines()
    assert set(modules.split()) >= {
        "service.http.app",
        "service.cli",
        "service.predictor.predictor",
        "service.store.store",
    }
    assert best == "Taxation"


def test_the_trainer_can_be_imported_if_no_web_server_is_installed() -> None:
    blocked = NEVER_IMPORTS["trainer"] | {"service", "index_builder"}
    modules = run_blocked(blocked, 'print(*import_all("trainer"))').split()
    assert {"trainer.run", "trainer.training.train", "trainer.memory.memory"} <= set(modules)


def test_the_index_builder_can_be_imported_if_no_web_server_is_installed() -> None:
    modules = run_blocked(NEVER_IMPORTS["index_builder"], 'print(*import_all("index_builder"))')
    assert "index_builder.build" in modules.split()
